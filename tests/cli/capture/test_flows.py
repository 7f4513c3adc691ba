"""`sojourn flows`: the same table in every format, one line per error, nothing hidden."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ["src_ip", "src_port", "dest_ip", "dest_port", "protocol", "packets", "bytes", "first_ns", "last_ns"]


def sojourn(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "sojourn.cli.main", "flows", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


@pytest.fixture(scope="module")
def capture(shared_data: Path) -> Path:
    return shared_data / "captures" / "pcpp-sll.pcap"


@pytest.fixture(scope="module")
def answer(capture: Path) -> dict[str, object]:
    done = sojourn(capture, "--format", "json")
    assert (done.returncode, done.stderr) == (0, b"")
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_json_tells_packets_flows_and_what_was_ignored(answer: dict[str, object]) -> None:
    assert answer["packets"] == 518
    assert answer["ip_packets"] == 511
    assert answer["ignored"] == {"arp": 7}
    flows = answer["flows"]
    assert isinstance(flows, list)
    assert len(flows) == 27
    assert list(flows[0]) == NAMES
    assert sum(flow["packets"] for flow in flows) == 511
    sizes = [flow["bytes"] for flow in flows]
    assert sizes == sorted(sizes, reverse=True)
    assert all(flow["first_ns"] <= flow["last_ns"] for flow in flows)


def test_every_format_has_the_same_rows(capture: Path, answer: dict[str, object], tmp_path: Path) -> None:
    flows = answer["flows"]
    lines = sojourn(capture, "--format", "jsonl").stdout.decode().splitlines()
    assert [json.loads(line) for line in lines] == flows

    table = tmp_path / "flows.csv"
    assert sojourn(capture, "-w", table).returncode == 0
    read = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [{name: str(value) for name, value in row.items()} for row in read] == [
        {name: str(value) for name, value in flow.items()}
        for flow in flows  # type: ignore[attr-defined]
    ]

    from pyarrow import parquet

    columns = tmp_path / "flows.parquet"
    assert sojourn(capture, "-w", columns).returncode == 0
    assert parquet.read_table(columns).to_pylist() == flows


def test_the_table_shows_the_largest_flows(capture: Path) -> None:
    done = sojourn(capture, "--limit", "3", "-v")
    lines = done.stdout.decode().splitlines()
    assert len(lines) == 4
    assert lines[1].split()[:6] == ["212.199.202.69", "80", "10.0.0.8", "40800", "tcp", "325"]
    assert "24 flows not shown" in done.stderr.decode()
    assert "ignored: 7 × arp" in done.stderr.decode()


def test_stdin_and_keys(shared_data: Path) -> None:
    content = (shared_data / "captures" / "zeek-vlan-collisions.pcap").read_bytes()
    by_tag = json.loads(sojourn("-", "--key", "vlan+five-tuple", "--format", "json", stdin=content).stdout)
    by_pair = json.loads(sojourn("-", "--key", "host-pair", "--format", "json", stdin=content).stdout)
    assert len(by_tag["flows"]) > len(by_pair["flows"])
    assert any(flow["vlan"].isdigit() for flow in by_tag["flows"])
    assert by_pair["flows"][0]["protocol"] is None


def test_a_cut_capture_warns_and_strict_fails(capture: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(capture.read_bytes()[:-3])
    lenient = sojourn(cut, "--format", "json")
    assert lenient.returncode == 0
    assert json.loads(lenient.stdout)["packets"] == 517
    assert b"ends inside a packet" in lenient.stderr
    strict = sojourn(cut, "--strict", "--format", "json")
    assert (strict.returncode, strict.stdout) == (1, b"")
    assert strict.stderr.count(b"\n") == 1
    assert b"cut.pcap, byte " in strict.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["/nonexistent"], 1, "No such file"),
        ([__file__], 1, "not a capture"),
        ([__file__, "--key", "prefix/200"], 2, "prefix lengths"),
        (["CAPTURE", "-w", "flows.xlsx"], 2, "no format is known by the ending .xlsx; use .txt, .json, .jsonl, .csv"),
        (["CAPTURE", "--columns", "src_ip,color"], 2, "there is no column color; choose of src_ip, src_port"),
        (["CAPTURE", "--sort", "color"], 2, "there is no column color to sort by; choose of src_ip, src_port"),
    ],
)
def test_errors_are_one_line(capture: Path, arguments: list[str], code: int, text: str) -> None:
    done = sojourn(*(str(capture) if argument == "CAPTURE" else argument for argument in arguments))
    assert done.returncode == code
    assert done.stderr.decode().count("\n") == 1
    assert text in done.stderr.decode()


def test_an_empty_capture_has_no_flows(tmp_path: Path) -> None:
    path = tmp_path / "empty.pcap"
    path.write_bytes(bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000"))
    for how in ("json", "jsonl", "csv", "table"):
        assert sojourn(path, "--format", how).returncode == 0
    assert json.loads(sojourn(path, "--format", "json").stdout)["flows"] == []
    assert sojourn(path, "-w", tmp_path / "empty.parquet").returncode == 0


def test_help_shows_an_example() -> None:
    assert b"sojourn flows ingress.pcap.gz" in sojourn("--help").stdout
