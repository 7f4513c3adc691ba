"""`record --weights` and `estimate --heavy`, end to end on a real capture."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from command_line import sojourn
from sojourn.core.errors import UsageError
from sojourn.segments.heavy import parse_threshold
from sojourn.sketches.lds import Lds, LdsParameters

FLOW = "10.81.0.2:44244 > 10.82.0.2:5202 udp"
POLICY = '[[rule]]\nsource = "10.81.0.0/16"\nport = 5202\nprotocol = "udp"\nweight = 25\n'


@pytest.fixture(scope="module")
def recorded(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """The epochs of a point and of one 20 ms behind it: as they are, weighted, and weighted without keys."""
    folder = tmp_path_factory.mktemp("weights")
    capture, later = shared_data / "two-point" / "ingress.pcap.gz", folder / "later.pcap"
    subprocess.run(["editcap", "-t", "0.02", capture, later], check=True)
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    files = {}
    for name, options in (
        ("plain", ()),
        ("weighted", ("--weights", policy)),
        ("no keys", ("--weights", policy, "--no-keys")),
    ):
        paths = folder / f"{name} in", folder / f"{name} out"
        common = ("--sketch", "lds", "--flows", "50", "--loss", "0", "-p", "columns=300", "src", "net", "10.81.0.0/16")
        for path, point in zip(paths, (capture, later), strict=True):
            done = sojourn("record", point, "-w", path, *options, *common)
            assert done.returncode == 0, done.stderr
        files[name] = paths
    return files


def test_weighted_flows_are_answered_in_packets(recorded) -> None:
    rows = {
        name: json.loads(sojourn("estimate", *recorded[name], "--format", "json").stdout)["flows"]
        for name in ("plain", "weighted")
    }
    packets = {
        name: {(row["src_port"], row["dest_port"]): row["packets"] for row in flows} for name, flows in rows.items()
    }
    udp = [ports for ports in packets["plain"] if ports[1] == 5202 and packets["plain"][ports] == 3751]
    assert len(udp) == 6
    assert {packets["weighted"][ports] for ports in udp} == {3751}


def test_a_weighted_flow_can_be_asked_for_by_name(recorded) -> None:
    rows = json.loads(sojourn("estimate", *recorded["no keys"], "--flow", FLOW, "--format", "json").stdout)["flows"]
    assert rows[0]["packets"] == 3751


def test_points_with_different_policies_are_refused(recorded) -> None:
    done = sojourn("estimate", recorded["plain"][0], recorded["weighted"][1])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "weights (none) and [[rule]] source =" in done.stderr


@pytest.mark.parametrize(
    ("text", "options", "code", "said"),
    [
        ("[[rule]]\nweight = 0\n", ("--sketch", "lds"), 1, "policy.toml, rule 1: weight is 0"),
        ("weight", ("--sketch", "lds"), 1, "not TOML"),
        (POLICY, (), 2, "--weights: auto has no weights; use --sketch lds"),
        (POLICY, ("--sketch", "lda"), 2, "--weights: lda has no weights; use --sketch lds"),
    ],
)
def test_a_bad_policy_is_one_line(tmp_path: Path, shared_data: Path, text, options, code, said) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(text)
    capture = shared_data / "two-point" / "ingress.pcap.gz"
    done = sojourn("record", capture, "-w", tmp_path / "out", "--weights", policy, *options)
    assert done.returncode == code
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


@pytest.mark.parametrize("name", ["plain", "weighted"])
def test_heavy_flows_are_listed_with_certain_bounds(recorded, name: str) -> None:
    done = sojourn("estimate", *recorded[name], "--heavy", "5%" if name == "plain" else "2242", "--format", "json")
    answer = json.loads(done.stdout)
    assert answer["heavy"]["threshold_packets"] == 2242
    assert answer["heavy"]["recorded_packets"] == 44829
    assert [row["packets_low"] for row in answer["flows"]] == [3751] * 6
    assert all(row["surely"] and row["packets_high"] == 3751 for row in answer["flows"])


def test_without_keys_the_number_of_heavy_flows_is_bounded(recorded) -> None:
    done = sojourn("estimate", *recorded["no keys"], "--heavy", "5%")
    assert done.returncode == 0
    assert "names need keys" in done.stdout
    named = sojourn("estimate", *recorded["no keys"], "--heavy", "5%", "--flow", FLOW)
    assert "0 flows surely, 1 more maybe, of 1" in named.stdout


def test_a_threshold_that_is_none_is_refused(recorded) -> None:
    done = sojourn("estimate", *recorded["plain"], "--heavy", "150%")
    assert done.returncode == 2
    assert done.stderr == "sojourn: --heavy: '150%' is no threshold; write packets (1000) or a share (1%)\n"
    sketch = Lds(LdsParameters(rows=1, columns=4))
    for text in ("0", "x", "1.5", "-3", "nan", "inf", "", "%", "²"):
        with pytest.raises(UsageError, match="is no threshold"):
            parse_threshold(sketch, text)
