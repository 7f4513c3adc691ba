"""`record --keys` and `--no-keys`, and what `estimate` can answer from either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import sojourn

FLOW = "10.81.0.2:44244 > 10.82.0.2:5202 udp"


@pytest.fixture(scope="module")
def epochs(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Both points' epochs, with and without keys."""
    folder = tmp_path_factory.mktemp("epochs")
    files = {}
    for flag in ("--keys", "--no-keys"):
        paths = []
        for end in ("ingress", "egress"):
            path = folder / f"{end}{flag}"
            capture = shared_data / "two-point" / f"{end}.pcap.gz"
            options = ("--sketch", "sample", "--memory", "128KB", "--flows", "50", flag)
            done = sojourn("record", capture, "-w", path, *options, "src", "net", "10.81.0.0/16")
            assert done.returncode == 0, done.stderr
            assert ("43 keys reported" in done.stderr) is (flag == "--keys")
            paths.append(path)
        files[flag] = (paths[0], paths[1])
    return files


def test_with_keys_all_flows_are_answered(epochs) -> None:
    done = sojourn("estimate", *epochs["--keys"], "--format", "json")
    answer = json.loads(done.stdout)
    assert len(answer["flows"]) == 43
    assert {row["method"] for row in answer["flows"]} == {"sample"}


def test_without_keys_the_error_says_what_is_needed(epochs) -> None:
    done = sojourn("estimate", *epochs["--no-keys"])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "name the flows with --flow, or record both points with --keys" in done.stderr


def test_without_keys_a_named_flow_has_the_same_delay(epochs) -> None:
    """A complete list tells more of packets and losses."""
    rows = [
        json.loads(sojourn("estimate", *epochs[flag], "--flow", FLOW, "--format", "json").stdout)["flows"]
        for flag in ("--keys", "--no-keys")
    ]
    delays = [[{k: v for k, v in row.items() if k[:4] not in ("pack", "lost")} for row in some] for some in rows]
    assert delays[0] == delays[1]
    assert rows[0][0]["samples"] > 100
    assert all(rows[0][0][name] <= rows[1][0][name] for name in ("lost_high", "packets_high"))


def test_keys_at_one_point_alone_are_named_as_what_differs(shared_data: Path, tmp_path: Path) -> None:
    for end, flag in (("ingress", "--keys"), ("egress", "--no-keys")):
        capture = shared_data / "two-point" / f"{end}.pcap.gz"
        assert (
            sojourn("record", capture, "-w", tmp_path / end, flag, "--flows", "5000", "--loss", "0.005").returncode == 0
        )
    done = sojourn("estimate", tmp_path / "ingress", tmp_path / "egress")
    assert done.returncode == 2
    assert "both with keys or without" in done.stderr


@pytest.mark.parametrize("name", ["here.pcap", "link.pcap"])
def test_a_capture_is_not_written_over_by_its_own_epochs(shared_data: Path, tmp_path: Path, name: str) -> None:
    content = (shared_data / "captures" / "zeek-http-ns.pcap").read_bytes()
    capture = tmp_path / "here.pcap"
    capture.write_bytes(content)
    (tmp_path / "link.pcap").symlink_to(capture)
    done = sojourn("record", capture, "-w", tmp_path / name)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "that is the capture itself; write the epochs to another file" in done.stderr
    assert capture.read_bytes() == content
