"""`import sojourn`: light, lazy, and all of its names are what they say."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sojourn

HEAVY = ("numpy", "numba", "scipy", "rich", "typer", "httpx", "cbor2", "pandas", "pyarrow")


def in_a_fresh_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, sojourn; dir(sojourn); print([m for m in {HEAVY} if m in sys.modules])"
    assert in_a_fresh_process(code) == "[]"


def test_importing_the_package_imports_none_of_its_rooms() -> None:
    code = "import sys, sojourn; print(sorted(m for m in sys.modules if m.startswith('sojourn')))"
    assert in_a_fresh_process(code) == "['sojourn']"


@pytest.mark.parametrize("name", sojourn.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(sojourn, name)
    assert name in dir(sojourn)
    if name != "__version__":
        assert callable(found)
        assert inspect.getdoc(found)


@pytest.mark.parametrize("name", ["rtt", "tomography"])
def test_a_room_of_the_same_name_does_not_hide_a_function(name: str) -> None:
    code = (
        f"import importlib, sojourn; importlib.import_module('sojourn.{name}'); importlib.reload(sojourn); "
        f"from sojourn import {name}; print({name}.__class__.__name__, sojourn.{name} is {name})"
    )
    assert in_a_fresh_process(code) == "function True"
    assert importlib.import_module(f"sojourn.{name}").__path__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        _ = sojourn.mesure


def test_every_name_has_a_type_for_checkers() -> None:
    """What is imported lazily is imported under TYPE_CHECKING as well, from the same module."""
    lines = set(inspect.getsource(sojourn).splitlines())
    for name, home in sojourn._HOMES.items():
        assert f"    from sojourn.{home} import {name} as {name}" in lines


def test_the_names_shown_are_the_public_ones() -> None:
    assert dir(sojourn) == sorted(sojourn.__all__)


FUNCTIONS = ("measure", "estimate", "flows", "rtt", "record", "tomography", "open_capture", "plan")


@pytest.mark.parametrize("wrong", [None, 5, ["a"], b"a", 1.5], ids=repr)
@pytest.mark.parametrize("name", [*FUNCTIONS, "Client", "Interface"])
def test_arguments_of_another_type_are_named(name: str, wrong: object) -> None:
    count = 2 if name in ("measure", "estimate", "Client") else 1
    with pytest.raises(sojourn.SojournError, match=rf"^{name}|^__init__: \w+ cannot be .*; give "):
        getattr(sojourn, name)(*[wrong] * count)


def opened(name: str, path: str) -> object:
    """The function called with a file."""
    function = getattr(sojourn, name)
    if name == "plan":
        return function("lds", capture=path)
    found = function(path, path) if name in ("measure", "estimate") else function(path)
    return list(found) if name == "record" else found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_files_that_cannot_be_read_are_errors_of_one_line_with_their_cause(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(sojourn.SojournError, match=rf"^{path}: (No such|Is a)[ \w]+$") as raised:
            opened(name, str(path))
        assert isinstance(raised.value.__cause__, OSError)
    with pytest.raises(sojourn.SojournError, match=r"^/dev/zero: this is a device"):
        opened(name, "/dev/zero")


@pytest.fixture(scope="module")
def captures(shared_data: Path) -> tuple[str, str]:
    folder = shared_data / "two-point"
    return str(folder / "ingress.pcap.gz"), str(folder / "egress.pcap.gz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "foo"}, "measure: method cannot be 'foo'; choose of joint, literal"),
        ({"sketch": "foo"}, "measure: sketch cannot be 'foo'; choose of auto, lds, colate, sample, lda, ledger, exact"),
        ({"skech": "lds"}, "measure: there is no parameter skech; did you mean sketch?"),
        ({"confidence": 2}, "measure: confidence is that of an error; give both"),
        ({"error": "5%", "confidence": 2}, "error: 0.05 at 2; give shares between 0 and 1, such as 5%"),
        ({"interval": 0}, "interval: 0 is no length of time; give more than 0, such as 1s"),
        ({"interval": "-1s"}, "interval: '-1s' is no length of time; give more than 0, such as 1s"),
        ({"clock": "offset=99999d"}, "clock: '99999d' is longer than a century; give a shorter time"),
        (
            {"memory": "much"},
            "memory: 'much' is not a size; write a number and one of b, kb, mb, gb, kib, mib, gib, tb, tib",
        ),
        ({"flows": 3}, "measure: flows is for interfaces; leave it out"),
        ({"memory": 0}, "auto: 0 bytes are too few; give at least 1287 bytes"),
        ({"error": 0.1, "memory": 5}, "measure: error chooses the memory; give memory or error, not both"),
    ],
)
def test_options_that_cannot_be_are_refused(captures: tuple[str, str], options: dict, message: str) -> None:
    with pytest.raises(sojourn.SojournError) as raised:
        sojourn.measure(*captures, **options)
    assert str(raised.value) == message


def test_a_capture_is_no_file_of_epochs(captures: tuple[str, str]) -> None:
    with pytest.raises(sojourn.SojournError, match="not epochs but a capture; record it first, or use sojourn measure"):
        sojourn.estimate(*captures)


def test_too_many_intervals_are_refused_before_there_are_any(captures: tuple[str, str]) -> None:
    with pytest.raises(sojourn.SojournError, match=r"7,255,053,096 intervals, more than 100,000; give 73\.0µs"):
        sojourn.measure(*captures, interval="1ns")
    with pytest.raises(sojourn.SojournError) as raised:
        sojourn.measure(*captures, sketch="auto", interval="1ns")
    assert str(raised.value) == (
        "interval: 7.49 s would be 7,488,483,923 intervals, more than 4,296; give 1.80ms or more, or less memory"
    )


def test_what_was_recorded_is_estimated(captures: tuple[str, str]) -> None:
    where = "src net 10.81.0.0/16"
    sent, received = (sojourn.record(path, where=where, memory="64KB") for path in captures)
    result = sojourn.estimate(sent, received)
    assert len(result) == 43
    kept = [list(sojourn.record(path, where=where, memory="64KB")) for path in captures]
    assert sojourn.estimate(*kept).to_dict() == result.to_dict()
    with pytest.raises(sojourn.SojournError, match="record: these epochs were read already"):
        sojourn.estimate(sent, received)


def results(captures: tuple[str, str], trace: Path) -> dict[str, Any]:
    """One of every kind of result."""
    sketched = sojourn.measure(*captures, memory="64KB", interval="4s", truth=True)
    epochs = [sojourn.record(path, where="src net 10.81.0.0/16", sketch="lds", memory="64KB") for path in captures]
    tomography = sojourn.tomography(trace)
    return {
        "measure": sketched,
        "exact": sojourn.measure(*captures, sketch="exact"),
        "estimate": sojourn.estimate(*epochs),
        "flows": sojourn.flows(captures[0]),
        "rtt": sojourn.rtt(captures[0]),
        "plan": sojourn.plan("lda", rate=1000),
        "tomography": tomography,
        "nodes": tomography.nodes,
        "selection": sketched.select("mean", 3),
    }


def test_every_result_can_be_pickled(captures: tuple[str, str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"3,{k},3-2-0,{k}.25,{k}.5\n" for k in range(20))
    trace.write_text("origin,seq,path,t0_s,t_sink_s\n" + rows)
    for name, result in results(captures, trace).items():
        copy = pickle.loads(pickle.dumps(result))
        assert copy.to_dict() == result.to_dict(), name
        assert repr(copy) == repr(result), name


def test_a_selection_has_no_negative_number_of_rows(captures: tuple[str, str]) -> None:
    for result in (sojourn.flows(captures[0]), sojourn.measure(*captures, sketch="lds"), sojourn.rtt(captures[0])):
        for sort in ("", "packets" if "packets" in result.columns() else "samples"):
            with pytest.raises(sojourn.SojournError, match="limit: -1 rows; give 0 or more"):
                result.select(sort, -1)
            none = result.select(sort, 0)
            assert (len(none), list(none)) == (0, [])
    with pytest.raises(sojourn.SojournError, match="select: limit cannot be '3'"):
        result.select(limit="3")  # type: ignore[arg-type]
