"""`sojourn rtt` on real captures: every format says the same, errors are one line."""

from __future__ import annotations

import csv
import io
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from packet_builders import Packet, PcapLayout, ethernet, ipv4, udp
from typer.testing import CliRunner

from command_line import printed
from sojourn.cli.main import app
from sojourn.core.errors import SojournError

ENDS = ["src_ip", "src_port", "dest_ip", "dest_port", "protocol"]
NAMES = ["timestamp", *ENDS, "rtt", "min_rtt", "kind", "note"]


@pytest.fixture
def capture(shared_data: Path) -> str:
    return str(shared_data / "captures" / "pcpp-sll.pcap")


def test_json_summarises_flows_with_the_documented_names(capture: str) -> None:
    answer = json.loads(printed("rtt", capture, "--format", "json"))
    assert set(answer) == {"summary", "flows", "ignored"}
    assert answer["summary"]["samples"] == sum(flow["samples"] for flow in answer["flows"]) > 100
    assert answer["summary"]["flows"] == len(answer["flows"])
    for flow in answer["flows"]:
        assert list(flow)[:5] == ENDS
        order = [flow[name] for name in ("min_rtt", "p50_ns", "p95_ns", "p99_ns", "max_ns")]
        assert order == sorted(order)
        assert flow["min_rtt"] <= flow["mean_ns"] <= flow["max_ns"]
        assert all(isinstance(flow[name], int) for name in ("min_rtt", "mean_ns", "std_ns"))


def test_samples_read_the_same_in_every_format(capture: str, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    lines = [json.loads(line) for line in printed("rtt", capture, "--samples", "--format", "jsonl").splitlines()]
    assert list(lines[0]) == NAMES
    assert json.loads(printed("rtt", capture, "--samples", "--format", "json"))["samples"] == lines
    rows = list(csv.DictReader(io.StringIO(printed("rtt", capture, "--samples", "--format", "csv"))))
    assert [{name: str(line[name]) for name in NAMES} for line in lines] == rows
    target = tmp_path / "samples.parquet"
    printed("rtt", capture, "--samples", "-w", str(target))
    assert pq.read_table(target).to_pylist() == lines
    assert len(printed("rtt", capture, "--samples").splitlines()) == len(lines)


def test_flows_read_the_same_in_every_format(capture: str, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    flows = json.loads(printed("rtt", capture, "--format", "json"))["flows"]
    assert [json.loads(line) for line in printed("rtt", capture, "--format", "jsonl").splitlines()] == flows
    rows = list(csv.DictReader(io.StringIO(printed("rtt", capture, "--format", "csv"))))
    assert rows == [{name: str(value) for name, value in flow.items()} for flow in flows]
    target = tmp_path / "flows.parquet"
    printed("rtt", capture, "-w", str(target))
    assert pq.read_table(target).to_pylist() == flows
    table = printed("rtt", capture)
    assert [line.split()[0] for line in table.splitlines()[1:]] == [flow["src_ip"] for flow in flows]
    assert len(printed("rtt", capture, "--limit", "2", "--format", "jsonl").splitlines()) == 2


def test_the_source_of_a_sample_is_the_host_that_answered(capture: str) -> None:
    """A server a few ms away, seen at the client: the long times are the server's."""
    flows = json.loads(printed("rtt", capture, "--format", "json", "--kind", "handshake"))["flows"]
    by_port = {flow["src_port"] == 80: flow["mean_ns"] for flow in flows}
    assert by_port[True] > 10 * by_port[False]


def test_kinds_can_be_chosen(capture: str) -> None:
    answer = json.loads(printed("rtt", capture, "--format", "json", "--kind", "seq", "--kind", "handshake"))
    assert {flow["kind"] for flow in answer["flows"]} == {"seq", "handshake"}


def test_verbose_tells_what_was_left_out(shared_data: Path) -> None:
    path = shared_data / "captures" / "zeek-echo-connections-82k.pcap.gz"
    result = CliRunner().invoke(app, ["rtt", str(path), "-v", "--format", "jsonl"])
    assert "left out: handshakes whose syn or syn/ack was repeated: 158" in result.stderr


def test_every_capture_is_read_without_a_failure(shared_data: Path) -> None:
    for path in sorted((shared_data / "captures").iterdir()):
        answer = json.loads(printed("rtt", str(path), "--format", "json"))
        assert answer["summary"]["packets"] > 0, path
        assert all(count > 0 for count in answer["ignored"].values())


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["/no/such/file"], 1, "/no/such/file: No such file or directory"),
        ([], 2, "rtt: one source is needed; give a CAPTURE, or -i INTERFACE"),
        (["x.pcap", "--pending", "1000"], 2, "rtt: 1000 pending entries; use a power of two from 64 to 2^28"),
        (["x.pcap", "--max-rtt", "soon"], 2, "'soon' is not a duration"),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, text: str) -> None:
    command = [sys.executable, "-m", "sojourn.cli.main", "rtt", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == 1
    assert text in done.stderr


def test_help_needs_no_compiler() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from sojourn.cli.main import app;"
        "out = CliRunner().invoke(app, ['rtt', '--help']).stdout;"
        "assert 'sojourn rtt office.pcapng' in out, out; assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_table_without_rows_says_that_nothing_was_measured(capture: str) -> None:
    result = CliRunner().invoke(app, ["rtt", capture, "port", "9"])
    assert result.exit_code == 0
    assert "0 samples of 0 flows in " in result.stderr


def test_ports_of_dns_and_quic_are_options(tmp_path: Path) -> None:
    question = b"\1a\0\0\1\0\1"
    messages = [struct.pack("!HHHHHH", 7, flags, 1, 0, 0, 0) + question for flags in (0x100, 0x8180)]
    ends = [(4000, 5300), (5300, 4000)]
    asked = ethernet(ipv4(udp(messages[0], *ends[0])))
    answered = ethernet(ipv4(udp(messages[1], *ends[1]), source="10.0.0.2", destination="10.0.0.1"))
    path = tmp_path / "dns.pcap"
    path.write_bytes(PcapLayout().write([Packet(asked, 10**18), Packet(answered, 10**18 + 5000)]))
    assert json.loads(printed("rtt", str(path), "--format", "json"))["flows"] == []
    (flow,) = json.loads(printed("rtt", str(path), "--dns-port", "5300", "--format", "json"))["flows"]
    assert (flow["kind"], flow["src_port"], flow["min_rtt"]) == ("dns", 5300, 5000)
    wrong = CliRunner().invoke(app, ["rtt", str(path), "--quic-port", "53"])
    assert isinstance(wrong.exception, SystemExit | SojournError)
    assert "port 53 is of QUIC and of DNS" in str(wrong.exception) + wrong.output
