"""`measure`, `record` and `estimate` on the real two-point capture: 19 % loss, packets not in time order."""

from __future__ import annotations

import csv
import gzip
import json
import struct
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from command_line import SOJOURN, sojourn

SENDERS_NET = ["src", "net", "10.81.0.0/16"]


def answer(*arguments: str) -> dict:
    result = sojourn(*arguments, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def captures(shared_data: Path) -> tuple[str, str]:
    folder = shared_data / "two-point"
    return str(folder / "ingress.pcap.gz"), str(folder / "egress.pcap.gz")


@pytest.fixture(scope="module")
def exact(captures) -> dict:
    return answer("measure", *captures, "--sketch", "exact")


def flow_of(row: dict) -> tuple:
    return row["src_ip"], row["src_port"], row["dest_ip"], row["dest_port"], row["protocol"]


def plain_packets(path: str):
    """Packets of a little-endian ns pcap of Ethernet and IPv4: identity, flow and time, in plain Python."""
    data = gzip.decompress(Path(path).read_bytes())
    assert data[:4] == bytes.fromhex("4d3cb2a1")
    at = 24
    while at < len(data):
        seconds, nanoseconds, captured, _ = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16 : at + 16 + captured]
        at += 16 + captured
        ip = frame[14:]
        if frame[12:14] != b"\x08\x00":
            continue
        header = 4 * (ip[0] & 15)
        length = int.from_bytes(ip[2:4], "big")
        body = bytearray(ip[header : min(length, 68)])
        checksum = {6: 16, 17: 6, 1: 2}[ip[9]]
        body[checksum : checksum + 2] = b"\0\0"
        identity = (bytes(ip[2:6]), ip[9], ip[12:20], bytes(body))
        ports = struct.unpack(">HH", ip[header : header + 4]) if ip[9] in (6, 17) else (0, 0)
        names = [".".join(map(str, ip[i : i + 4])) for i in (12, 16)]
        protocol = {1: "icmp", 6: "tcp", 17: "udp"}[ip[9]]
        yield identity, (names[0], ports[0], names[1], ports[1], protocol), seconds * 10**9 + nanoseconds


def test_exact_agrees_with_dictionaries_to_the_packet(captures, exact) -> None:
    sent, received = list(plain_packets(captures[0])), list(plain_packets(captures[1]))
    waiting = defaultdict(list)
    for identity, flow, time_ns in sorted(sent, key=lambda packet: packet[2]):
        waiting[identity].append((flow, time_ns))
    delays = defaultdict(list)
    for identity, _, time_ns in sorted(received, key=lambda packet: packet[2]):
        if waiting[identity]:
            flow, sent_ns = waiting[identity].pop(0)
            delays[flow].append(time_ns - sent_ns)
    totals = defaultdict(int)
    for _, flow, _ in sent:
        totals[flow] += 1
    forward = {flow for flow in totals if flow[0] == "10.81.0.2"}
    assert {flow_of(row) for row in exact["flows"]} == forward
    for row in exact["flows"]:
        own = delays[flow_of(row)]
        assert row["packets"] == totals[flow_of(row)]
        assert row["lost"] == totals[flow_of(row)] - len(own)
        assert row["mean_ns"] == round(sum(own) / len(own))
    assert exact["aggregate"]["sent"] == sum(totals[flow] for flow in forward)


def test_lda_in_16_kib_gives_the_mean_within_3_per_cent(captures, exact) -> None:
    lda = answer("measure", *captures, "--sketch", "lda", "--memory", "16KiB", "--truth")
    assert lda["sketch"]["memory_bytes"] <= 16384
    assert lda["aggregate"]["mean_ns"] == pytest.approx(exact["aggregate"]["mean_ns"], rel=0.03)
    assert lda["truth"]["mean_ns"] == exact["aggregate"]["mean_ns"]
    for name in ("sent", "received", "lost"):
        assert lda["aggregate"][name] == exact["aggregate"][name]


@pytest.mark.parametrize("sketch", ["lds", "colate"])
@pytest.mark.parametrize("memory", ["1MB", "128KB"])
def test_flow_sketches_give_exact_total_loss_and_true_intervals(captures, exact, sketch: str, memory: str) -> None:
    result = answer("measure", *captures, "--sketch", sketch, "--method", "literal", "--memory", memory, "--truth")
    for name in ("sent", "received", "lost"):
        assert result["aggregate"][name] == exact["aggregate"][name]
    answered = [row for row in result["flows"] if row["mean_ns"] is not None]
    inside = [row["low_ns"] <= row["true_mean_ns"] <= row["high_ns"] for row in answered]
    assert len(result["flows"]) == len(exact["flows"])
    assert len(answered) >= (0.9 if sketch == "lds" else 0.2) * len(exact["flows"])
    assert sum(inside) >= 0.9 * len(inside)
    assert all(row["reason"] for row in result["flows"] if row["mean_ns"] is None)


def test_a_sketch_never_counts_fewer_lost_than_were(captures) -> None:
    """LDS §4.3: collisions can only add; with many cells per flow most flows' losses are exact."""
    rows = answer("measure", *captures, "--sketch", "lds", "--method", "literal", "--memory", "1MB", "--truth")["flows"]
    assert all(row["lost"] >= row["true_lost"] for row in rows)
    assert sum(row["lost"] == row["true_lost"] for row in rows) >= 0.7 * len(rows)


def test_the_default_answers_every_large_flow_and_says_how_well(captures) -> None:
    """What was measured over twelve salts (docs/maths/auto.md), for the one that the command has."""
    result = answer("measure", *captures, "--memory", "128KB", "--truth")
    truth = result["truth"]
    assert result["sketch"]["name"] == "auto"
    assert truth["large_flows"] == truth["large_flows_answered"] == 22
    assert truth["coverage"] >= 0.88
    assert 0 < truth["median_error"] < 0.013
    assert truth["grand_mean_error"] == pytest.approx(0.0096, abs=0.0002)
    assert all(row["lost"] == row["true_lost"] for row in result["flows"])
    assert {row["method"] for row in result["flows"]} <= {"lds joint", "lds", "sample", "prior only"}
    table = sojourn("measure", *captures, "--memory", "128KB", "--truth", "--limit", "1").stdout
    assert "for answering the grand mean" in table


def test_epochs_without_keys_are_decoded_flow_by_flow_and_say_what_joint_decoding_needs(captures, tmp_path) -> None:
    files = []
    for name, capture in zip(("in", "out"), captures, strict=True):
        files.append(str(tmp_path / f"{name}.epochs"))
        sojourn("record", capture, "--sketch", "lds", "--flows", "50", "--no-keys", "-w", files[-1], *SENDERS_NET)
    flow = "10.81.0.2:44244 > 10.82.0.2:5202 udp"
    result = sojourn("estimate", *files, "--flow", flow, "--format", "json")
    assert "joint decoding needs the keys of all flows" in result.stderr
    assert {row["method"] for row in json.loads(result.stdout)["flows"]} <= {"lds", None}


def test_json_has_the_promised_names(captures) -> None:
    result = answer("measure", *captures, "--truth")
    assert set(result) >= {"aggregate", "flows", "sketch", "clock", "ignored"}
    assert set(result["aggregate"]) >= {"sent", "received", "lost", "mean_ns", "std_ns", "low_ns", "high_ns"}
    assert set(result["sketch"]) >= {"name", "parameters", "memory_bytes", "bits_per_packet"}
    assert set(result["clock"]) == {"offset_ns", "skew_ppm", "uncertainty_ns", "corrected"}
    names = {"src_ip", "src_port", "dest_ip", "dest_port", "protocol", "packets", "lost", "mean_ns", "std_ns"}
    names |= {"low_ns", "high_ns", "samples", "method", "true_mean_ns", "true_std_ns", "true_lost"}
    assert all(set(row) >= names for row in result["flows"])
    assert result["ignored"]["other direction at sender"] == 5472


def test_reverse_measures_the_other_direction(captures) -> None:
    result = answer("measure", *captures, "--reverse", "--sketch", "exact")
    assert result["aggregate"]["sent"] == 5472
    assert result["aggregate"]["lost"] == 0
    assert all(row["src_ip"] == "10.82.0.2" for row in result["flows"])


@pytest.mark.parametrize("markers", [[], ["--markers"]])
def test_intervals_add_up_and_the_digest_keeps_their_edges_clean(captures, exact, markers: list[str]) -> None:
    result = answer("measure", *captures, "--sketch", "lda", "--memory", "64KB", "--interval", "1s", *markers)
    parts = result["intervals"]
    assert len(parts) >= 6
    assert sum(part["sent"] for part in parts) == exact["aggregate"]["sent"]
    assert result["aggregate"]["lost"] == exact["aggregate"]["lost"]
    whole = exact["aggregate"]
    for part in (part for part in parts if part["sent"] > 1000):
        assert abs(part["mean_ns"] - whole["mean_ns"]) < whole["std_ns"]


def test_a_filter_and_a_key_choose_what_is_measured(captures) -> None:
    udp = answer("measure", *captures, "--sketch", "exact", "udp", "port", "5202")
    assert {row["protocol"] for row in udp["flows"]} == {"udp"}
    hosts = answer("measure", *captures, "--sketch", "exact", "--key", "host-pair")
    assert [row["src_ip"] for row in hosts["flows"]] == ["10.81.0.2"]


def test_a_wrong_clock_is_found_corrected_and_reported(captures, exact, tmp_path: Path) -> None:
    raw = gzip.decompress(Path(captures[1]).read_bytes())
    shifted = bytearray(raw)
    at = 24
    while at < len(raw):
        seconds, nanoseconds, captured, _ = struct.unpack_from("<IIII", raw, at)
        total = seconds * 10**9 + nanoseconds + 3_200_000_000
        struct.pack_into("<II", shifted, at, *divmod(total, 10**9))
        at += 16 + captured
    path = tmp_path / "late.pcap"
    path.write_bytes(shifted)
    result = answer("measure", captures[0], str(path), "--sketch", "exact")
    assert result["clock"]["corrected"]
    assert abs(result["clock"]["offset_ns"] - 3_200_000_000) <= result["clock"]["uncertainty_ns"] + 1000
    assert result["aggregate"]["lost"] == exact["aggregate"]["lost"]
    left = answer("measure", captures[0], str(path), "--sketch", "exact", "--clock", "none")
    assert left["aggregate"]["mean_ns"] == exact["aggregate"]["mean_ns"] + 3_200_000_000


def test_two_steps_give_what_one_gives(captures, exact, tmp_path: Path) -> None:
    files = []
    for name, capture in zip(("in", "out"), captures, strict=True):
        path = str(tmp_path / f"{name}.epochs")
        result = sojourn("record", capture, "--loss", "0.2", "--flows", "50", "-w", path, *SENDERS_NET)
        assert result.returncode == 0, result.stderr
        files.append(path)
    result = answer("estimate", *files)
    assert result["aggregate"]["sent"] == exact["aggregate"]["sent"]
    edge = exact["ignored"]["edge of the interval at receiver"]
    assert result["aggregate"]["received"] == exact["aggregate"]["received"] + edge
    truth = {flow_of(row): row["mean_ns"] for row in exact["flows"]}
    rows = [row for row in result["flows"] if row["mean_ns"] is not None]
    inside = [row["low_ns"] <= truth[flow_of(row)] <= row["high_ns"] for row in rows]
    assert len(rows) >= 35
    assert sum(inside) >= 0.9 * len(inside)
    flow = rows[0]
    text = f"{flow['src_ip']}:{flow['src_port']} > {flow['dest_ip']}:{flow['dest_port']} {flow['protocol']}"
    assert answer("estimate", *files, "--flow", text)["flows"] == [flow]


def test_recording_both_directions_is_noticed(captures, tmp_path: Path) -> None:
    files = []
    for name, capture in zip(("in", "out"), captures, strict=True):
        path = str(tmp_path / f"{name}.epochs")
        sojourn("record", capture, "--sketch", "lds", "-p", "spread=1", "-p", "shares=1", "-w", path, "port", "5201")
        files.append(path)
    result = sojourn("estimate", *files)
    assert result.returncode == 0
    assert "packets sent" in result.stdout


def test_colate_decoded_flow_by_flow_needs_sizes(captures, tmp_path: Path) -> None:
    files = []
    for name, capture in zip(("in", "out"), captures, strict=True):
        path = str(tmp_path / f"{name}.epochs")
        sojourn("record", capture, "--sketch", "colate", "--flows", "50", "-w", path, *SENDERS_NET)
        files.append(path)
    table = tmp_path / "flows.json"
    sojourn("flows", captures[0], "--format", "json", "-w", str(table))
    answered = [r for r in answer("estimate", *files, "--sizes", str(table))["flows"] if r["mean_ns"] is not None]
    assert len(answered) >= 10
    without = answer("estimate", *files, "--method", "literal")["flows"]
    assert all(row["mean_ns"] is None and row["reason"] for row in without)


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["measure", "nothing.pcap", "nothing.pcap"], "nothing.pcap: No such file or directory", 1),
        (["measure", "-", "-"], "both captures cannot come from stdin", 2),
        (
            ["measure", "IN", "OUT", "--error", "5"],
            "would be 500%; write 5%",
            2,
        ),
        (["measure", "IN", "OUT", "--sketch", "exact", "--markers"], "exact matching has neither markers", 2),
        (["measure", "IN", "OUT", "--flows", "5"], "--flows is for a live capture", 2),
        (["measure", "IN", "OUT", "--memory", "1parsec"], "is not a size", 2),
        (["measure", "IN", "OUT", "--memory", "100"], "auto: 100 bytes are too few; give at least", 2),
        (["measure", "IN", "OUT", "-p", "rows"], "write NAME=VALUE", 2),
        (["measure", "IN", "OUT", "--sketch", "lds", "-p", "depth=3"], "there is no parameter 'depth'", 2),
        (["measure", "IN", "OUT", "--sketch", "lds", "-p", "rows=many"], "is no value for it", 2),
        (["measure", "IN", "OUT", "-p", "rows=2"], "auto sets its parameters itself", 2),
        (["measure", "IN", "OUT", "--clock", "sundial"], "clock", 2),
        (["measure", "IN", "OUT", "port", "and"], "filter", 2),
        (["measure", "IN", "OUT", "port", "9"], "there is no IP packet to measure", 1),
        (["measure", "IN", "OTHER"], "do not overlap in time and no packet was seen at both", 1),
        (["measure", "IN", "OUT", "--interval", "soon"], "is not a duration", 2),
        (["record", "IN"], "give -w EPOCHS", 2),
        (["record", "IN", "--sketch", "exact", "-w", "x"], "measure --sketch exact", 2),
        (["estimate", "IN", "OUT"], "not epochs but a capture; record it first", 1),
        (["estimate", "SCRIPT", "OUT"], "expected [version, body, check]", 1),
        (["estimate", "EMPTY", "EMPTY"], "there is no epoch in it", 1),
        (["record", "EMPTY", "-w", "x"], "the file is empty", 1),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(captures, tmp_path, arguments, message: str, code: int) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    other = Path(captures[0]).parents[1] / "captures" / "zeek-http-ns.pcap"
    words = {"IN": captures[0], "OUT": captures[1], "EMPTY": str(empty), "OTHER": str(other), "SCRIPT": __file__}
    result = sojourn(*(words.get(argument, argument) for argument in arguments), cwd=tmp_path)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_files_in_every_format(captures, tmp_path: Path) -> None:
    for ending in ("json", "jsonl", "csv", "parquet"):
        path = tmp_path / f"flows.{ending}"
        assert sojourn("measure", *captures, "-w", str(path)).returncode == 0
        assert path.stat().st_size > 500


def test_a_damaged_capture_gives_what_precedes_the_damage_and_strict_fails(captures, tmp_path: Path) -> None:
    whole = gzip.decompress(Path(captures[1]).read_bytes())
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(whole[: len(whole) // 2])
    result = sojourn("measure", captures[0], str(cut), "--sketch", "exact", "--format", "json")
    assert result.returncode == 0
    assert "warning" in result.stderr
    assert json.loads(result.stdout)["aggregate"]["received"] > 10_000
    assert sojourn("measure", captures[0], str(cut), "--strict").returncode == 1


def rewritten(path: str, target: Path, change) -> str:
    """A copy of a nanosecond pcap whose records (time, captured and whole length, frame) are changed and in order."""
    raw = gzip.decompress(Path(path).read_bytes())
    records, at = [], 24
    while at < len(raw):
        seconds, nanoseconds, captured, length = struct.unpack_from("<IIII", raw, at)
        records.append((seconds * 10**9 + nanoseconds, length, raw[at + 16 : at + 16 + captured]))
        at += 16 + captured
    packed = (
        struct.pack("<IIII", *divmod(time_ns, 10**9), len(frame), length) + frame
        for time_ns, length, frame in sorted(change(records), key=lambda record: record[0])
    )
    target.write_bytes(raw[:24] + b"".join(packed))
    return str(target)


def from_sender(frame: bytes) -> bool:
    return frame[12:14] == b"\x08\x00" and frame[26:28] == bytes([10, 81])


@pytest.fixture(scope="module")
def doubled(captures, tmp_path_factory) -> tuple[str, str]:
    """The network sent every 25th packet twice, up to 4 ms apart; a mirror port showed others twice at the sender."""
    folder = tmp_path_factory.mktemp("doubled")

    def twice(every: int, number: int, apart_ns: int):
        def change(records):
            chosen = [r for r in records if from_sender(r[2]) and int.from_bytes(r[2][18:20], "big") % every == number]
            return records + [
                (time_ns + 10_000 + n * 997 % apart_ns, length, frame)
                for n, (time_ns, length, frame) in enumerate(chosen)
            ]

        return change

    return (
        rewritten(captures[0], folder / "in.pcap", twice(50, 1, 50_000)),
        rewritten(captures[1], folder / "out.pcap", twice(25, 2, 4_000_000)),
    )


@pytest.mark.parametrize("sketch", ["auto", "lds", "lda", "exact"])
def test_copies_in_captures_are_named_and_change_no_loss(doubled, exact, sketch: str) -> None:
    result = sojourn("measure", *doubled, "--sketch", sketch, "--format", "json")
    assert "are copies of other packets" in result.stderr
    told = json.loads(result.stdout)
    for name in ("sent", "received", "lost"):
        assert told["aggregate"][name] == exact["aggregate"][name]
    assert told["ignored"]["duplicate at receiver"] > 1000
    assert told["ignored"]["duplicate at sender"] > 500
    if sketch == "auto":
        truth = {flow_of(row): (row["packets"], row["lost"]) for row in exact["flows"]}
        assert {flow_of(row): (row["packets"], row["lost"]) for row in told["flows"]} == truth


def test_copies_in_epochs_leave_bounds_of_the_loss_and_no_negative_number(doubled, exact, tmp_path: Path) -> None:
    files = []
    for name, capture in zip(("in", "out"), doubled, strict=True):
        path = str(tmp_path / f"{name}.epochs")
        sojourn("record", capture, "--sketch", "lds", "--flows", "50", "-w", path, *SENDERS_NET)
        files.append(path)
    result = sojourn("estimate", *files, "--format", "json")
    assert "packets arrived that were not sent, or arrived twice" in result.stderr
    told = json.loads(result.stdout)
    assert told["aggregate"]["lost"] is None
    # The sender's copies count as sent and lost here.
    sent = told["aggregate"]["sent"] - exact["aggregate"]["sent"]
    assert 0 < told["aggregate"]["lost_low"] <= exact["aggregate"]["lost"] + sent
    assert all(row["lost"] is None or row["lost"] >= 0 for row in told["flows"])
    assert "at least" in sojourn("estimate", *files).stdout


def test_packets_put_together_by_offloading_are_no_loss(captures, tmp_path: Path) -> None:
    """At the sender two TCP segments in a row are one, as GRO makes them; the network carried both."""

    def together(records):
        out, waiting = [], {}
        for time_ns, length, frame in records:
            flow = frame[26:38] if from_sender(frame) and frame[23] == 6 and length > 1000 else None
            if flow is None:
                out.append((time_ns, length, frame))
            elif flow in waiting:
                _, first, head = waiting.pop(flow)
                size = first + length - 66
                merged = bytearray(head)
                merged[16:18] = (size - 14).to_bytes(2, "big")
                out.append((time_ns, size, bytes(merged)))
            else:
                waiting[flow] = (time_ns, length, frame)
        return out + list(waiting.values())

    merged = rewritten(captures[0], tmp_path / "merged.pcap", together)
    for sketch in ("exact", "auto"):
        result = sojourn("measure", merged, captures[1], "--sketch", sketch, "--format", "json")
        assert "put together or taken apart by offloading" in result.stderr
        assert "gro off" in result.stderr
        told = json.loads(result.stdout)
        assert told["aggregate"]["lost"] is None
        assert {row["protocol"] for row in told["flows"] if row["lost"] is None} == {"tcp"}
        if sketch == "auto":
            assert all(row["low_ns"] is None for row in told["flows"] if row["lost"] is None), (
                "their delays are a part's"
            )
        assert all(row["lost"] >= 0 for row in told["flows"] if row["protocol"] == "udp")


def test_tables_call_exact_what_is_exact_and_show_other_intervals_with_enough_digits(captures) -> None:
    lines = sojourn("measure", *captures, "--limit", "3").stdout.splitlines()
    assert "mean delay 24.3 ms, exact" in lines[2]
    assert all(line.split().count("exact") == 2 for line in lines[6:])
    lines = sojourn("measure", *captures, "--sketch", "lda").stdout.splitlines()
    low, high = lines[2].split("95 %")[1].split(",")[0].split("…")
    assert "exact" not in lines[2]
    assert low.strip() != high.strip()


def test_the_default_knows_the_whole_as_well_as_the_flows(captures, exact) -> None:
    told = answer("measure", *captures)["aggregate"]
    assert told["low_ns"] == told["mean_ns"] == told["high_ns"] == exact["aggregate"]["mean_ns"]


def test_flows_without_a_delay_are_last_and_have_their_counts(captures, exact) -> None:
    rows = answer("measure", *captures, "--sketch", "colate")["flows"]
    silent = [row["mean_ns"] is None for row in rows]
    assert 0 < sum(silent) < len(rows)
    assert silent == sorted(silent)
    truth = {flow_of(row): row for row in exact["flows"]}
    assert all(row["packets"] and row["lost"] is not None for row in rows)
    assert sum(row["packets"] == truth[flow_of(row)]["packets"] for row in rows) > 0.9 * len(rows)


def test_epochs_and_captures_come_from_pipes(captures, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("in.epochs", "out.epochs")]
    for capture, file in zip(captures, files, strict=True):
        assert sojourn("record", capture, "--memory", "64KB", "-w", file, *SENDERS_NET).returncode == 0
    with open(files[0], "rb") as stdin:
        command = [*SOJOURN, "estimate", "-", files[1], "--format", "json"]
        piped = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=True)
    assert json.loads(piped.stdout) == answer("estimate", *files)
    with open(captures[0], "rb") as stdin:
        command = [*SOJOURN, "measure", "-", captures[1], "--sketch", "exact", "--format", "json"]
        measured = json.loads(subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=True).stdout)
    assert measured["direction"]["sender"] == "stdin"
    assert measured["aggregate"]["sent"] == 44_829


def test_a_pipe_that_is_no_capture_is_not_kept() -> None:
    """It is looked at first: zeros would come until the limit of what is kept."""
    command = [*SOJOURN, "measure", "-", __file__]
    with open("/dev/zero", "rb") as stdin:
        result = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 1
    assert "stdin, byte 0: not a capture (unknown first bytes 00000000)" in result.stderr


def test_a_histogram_has_every_received_packet_of_every_flow(captures, exact, tmp_path: Path) -> None:
    path = tmp_path / "delays.csv"
    sojourn("measure", *captures, "--histogram", str(path))
    rows = list(csv.DictReader(path.open()))
    received: dict[str, int] = {}
    for row in rows:
        name = f"{row['src_port']} {row['dest_port']}"
        received[name] = received.get(name, 0) + int(row["packets"])
        assert int(row["from_ns"]) <= int(row["to_ns"]) <= int(row["from_ns"]) * 1.016 + 1
    assert received == {f"{flow['src_port']} {flow['dest_port']}": flow["samples"] for flow in exact["flows"]}


def test_a_histogram_of_a_sketch_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    ended = sojourn("measure", "nowhere", "nowhere", "--sketch", "lds", "--histogram", str(tmp_path / "delays.csv"))
    assert ended.returncode == 2
    assert "use --sketch exact" in ended.stderr
