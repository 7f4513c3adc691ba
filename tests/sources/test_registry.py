"""Metrics by name: the ones here, and plug-ins of really installed distributions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sojourn.core.errors import ParameterError, SojournError, SourceError
from sojourn.core.keys import NodeKey
from sojourn.sources.registry import metric_names, new_source, source_type
from sojourn.sources.source import Source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources.md"
Install = Callable[[str, str, str], None]

WORKING = """
from sojourn.core.keys import NodeKey
from sojourn.sources.source import Metric, ReadingSource

class Load(ReadingSource):
    metric = Metric("load", "jobs", "node", "samples")
    def read(self, now_ns):
        return {NodeKey("here"): 3}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution with one module and its entry points where Python finds it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(name: str, code: str, entry_points: str) -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[sojourn.sources]\n{entry_points}\n")
        importlib.invalidate_caches()

    yield put
    for module in set(sys.modules) - before:
        del sys.modules[module]


@pytest.mark.parametrize("name", ["cpu", "disk_io", "flow_bytes", "flow_packets", "memory", "packets", "rtt"])
def test_the_metrics_here_are_known_by_their_names(name: str) -> None:
    kind = source_type(name)
    assert issubclass(kind, Source)
    assert kind.metric.name == name
    assert name in metric_names()


def test_an_unknown_metric_is_told_with_those_there_are() -> None:
    with pytest.raises(ParameterError, match=r"'dsik_io' is no metric; use one of cpu, disk_io, .*install its plug-in"):
        new_source("dsik_io")


def test_an_unknown_option_is_told_with_those_there_are() -> None:
    with pytest.raises(ParameterError, match=r"metric disk_io: .*'methd'; its options are: method, ring_kib"):
        new_source("disk_io", methd="tracepoint")


def test_a_metric_of_an_installed_package_is_measured(install: Install) -> None:
    install("load-meter", WORKING, "load = load_meter:Load")
    assert "load" in metric_names()
    with new_source("load") as source:
        found = source.poll(7)
    assert found.keys == (NodeKey("here"),)
    assert found.batch.value.tolist() == [3]


def test_the_example_of_the_documentation_is_a_plug_in(install: Install) -> None:
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    entry = PAGE.read_text().split('```toml\n[project.entry-points."sojourn.sources"]\n')[1].split("```")[0]
    assert len(code.strip().splitlines()) <= 12
    install("my-package", code, entry.replace('"', "").strip())
    with new_source("load") as source:
        assert source.poll(0).batch.value.tolist()[0] >= 0


def test_a_plug_in_cannot_replace_a_metric_from_here(install: Install) -> None:
    install("load-meter", WORKING.replace('"load"', '"cpu"'), "cpu = load_meter:Load")
    assert source_type("cpu").__module__ == "sojourn.sources.processes"


@pytest.mark.parametrize(
    ("code", "entry", "said"),
    [
        (WORKING, "load = load_meter:Missing", "AttributeError"),
        ("import not_installed_anywhere", "load = load_meter:Load", "ModuleNotFoundError.*not_installed_anywhere"),
        ("raise SystemExit(3)", "load = load_meter:Load", "SystemExit: 3"),
        ("def Load(): pass", "load = load_meter:Load", "is no class of"),
        (WORKING.replace("def read", "def red"), "load = load_meter:Load", "does not say how to read"),
        (WORKING.replace('"load"', '"other"'), "load = load_meter:Load", "has the metric 'other'"),
        (WORKING.replace('"jobs"', '"no unit"'), "load = load_meter:Load", "cannot be the name of a unit"),
        (WORKING + "    def __init__(self):\n        1 / 0\n", "load = load_meter:Load", "ZeroDivisionError"),
    ],
)
def test_a_broken_plug_in_is_named_in_one_line(install: Install, code: str, entry: str, said: str) -> None:
    install("load-meter", code, entry)
    with pytest.raises(SourceError, match=said) as raised:
        new_source("load")
    assert "load_meter" in str(raised.value)
    assert "plug-in of metric load" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_two_plug_ins_of_one_metric_are_both_named(install: Install) -> None:
    install("load-meter", WORKING, "load = load_meter:Load")
    install("other-meter", WORKING, "load = other_meter:Load")
    with pytest.raises(SojournError, match=r"load-meter 1\.2.*other-meter 1\.2"):
        new_source("load")
