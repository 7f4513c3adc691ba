"""On real captures the samples agree with tshark: its ACK analysis, and its reading of time stamps."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from rtt_worlds import Packet, Sample, flow_id, nanoseconds, read_with_tshark

from sojourn.capture.decode.transport import ACK, FIN, RST, SYN
from sojourn.capture.files.reader import open_capture
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import Kind

CAPTURES = [
    "captures/zeek-tcp-timestamps-snap96.pcap",
    "captures/pcpp-sll.pcap",
    "captures/pcpp-tls2.pcap",
    "captures/zeek-echo-connections-82k.pcap.gz",
    "captures/suri-null-loopback.pcap",
    "two-point/ingress.pcap.gz",
    "two-point/egress.pcap.gz",
]


@pytest.fixture(scope="module", autouse=True)
def _tshark() -> None:
    if shutil.which("tshark") is None:
        if os.environ.get("CI"):
            pytest.fail("tshark is missing and CI skips nothing")
        pytest.skip("tshark is not installed")


@cache
def segments(path: Path) -> list[Packet]:
    return read_with_tshark(path)


def measured(path: Path, *kinds: Kind) -> tuple[list[Sample], dict[str, int]]:
    """What we read from the capture's own bytes; nothing passes through tshark."""
    meter = RttMeter(RttOptions(kinds=frozenset(kinds)))
    with open_capture(path) as capture:
        found = [
            Sample(t, f, r, Kind(k))
            for _, batch in capture.with_transport()
            for samples in meter.feed(batch)
            for t, f, r, _, k, _ in samples.rows()
        ]
    return found, meter.ignored


def counted(samples: list[Sample]) -> Counter[tuple[int, int, int]]:
    return Counter((s.time_ns, s.flow_id, s.rtt) for s in samples)


@pytest.mark.parametrize("name", CAPTURES)
def test_every_seq_and_handshake_sample_is_tsharks(name: str, shared_data: Path) -> None:
    """tshark leaves out a time of 0; all others of ours are its own, to the nanosecond."""
    found, _ = measured(shared_data / name, Kind.SEQ, Kind.HANDSHAKE)
    theirs = Counter((p.time_ns, flow_id(p), p.ack_rtt) for p in segments(shared_data / name) if p.ack_rtt is not None)
    assert len(found) > 20
    ours = counted([s for s in found if s.rtt > 0])
    assert ours - theirs == Counter()


@pytest.mark.parametrize("name", CAPTURES)
def test_what_tshark_has_beyond_ours_is_explained_by_what_we_left_out(name: str, shared_data: Path) -> None:
    """tshark times repeated, SACKed and refused segments too; here each of those is counted by reason."""
    found, ignored = measured(shared_data / name, Kind.SEQ, Kind.HANDSHAKE)
    theirs = Counter((p.time_ns, flow_id(p), p.ack_rtt) for p in segments(shared_data / name) if p.ack_rtt is not None)
    reasons = (
        "acks that a retransmission makes ambiguous",
        "acks of data that was sacked before",
        "handshakes whose syn or syn/ack was repeated",
        "answers later than the longest round trip",
        "tcp resets",
        "tcp segments sent again or out of order",
    )
    missing = (theirs - counted(found)).total()
    assert missing <= sum(ignored.get(reason, 0) for reason in reasons)
    if not any(ignored.get(reason) for reason in reasons):
        assert missing == 0


def matched_by_dictionary(packets: list[Packet]) -> Counter[tuple[int, int, int]]:
    """TSval and TSecr matched with dictionaries, as `rtt_tcp` says which segments are used."""
    newest: dict[object, int] = {}
    following: dict[object, int] = {}
    acknowledged: dict[object, int] = {}
    sent: dict[tuple[object, int], int] = {}
    found: Counter[tuple[int, int, int]] = Counter()
    for p in packets:
        if p.tsval is None or p.flags & RST:
            continue
        end = (p.seq + p.length + bool(p.flags & (SYN | FIN))) % 2**32
        if p.flags & SYN:
            newest[p.flow], following[p.flow] = p.tsval, end
            continue
        if p.flags & ACK:
            acknowledged[p.reverse] = p.ack
            if (p.reverse, p.tsecr) in sent:
                found[p.time_ns, flow_id(p), p.time_ns - sent.pop((p.reverse, p.tsecr))] += 1
        is_keep_alive = p.length < 2 and following.get(p.flow) == acknowledged.get(p.flow) == (p.seq + 1) % 2**32
        if not p.flags & FIN and is_keep_alive:
            continue
        known = newest.get(p.flow)
        if known is None or 0 < (p.tsval - known) % 2**32 < 2**31:
            newest[p.flow] = p.tsval
            if known is not None and end != p.seq:
                sent[p.flow, p.tsval] = p.time_ns
        if (end - following.get(p.flow, p.seq)) % 2**32 < 2**31:
            following[p.flow] = end
    return found


@pytest.mark.parametrize("name", [c for c in CAPTURES if "tls2" not in c and "suri" not in c])
def test_time_stamps_are_matched_as_dictionaries_over_tsharks_fields_match_them(name: str, shared_data: Path) -> None:
    found, ignored = measured(shared_data / name, Kind.TIMESTAMPS)
    theirs = matched_by_dictionary(segments(shared_data / name))
    assert "unanswered packets forgotten for newer ones" not in ignored
    assert theirs.total() > 20
    assert counted(found) == theirs


def test_dns_samples_are_tsharks_dns_time(shared_data: Path) -> None:
    path = shared_data / "captures/pcpp-sll.pcap"
    fields = ("frame.time_epoch", "ip.src", "ip.dst", "udp.dstport", "dns.time")
    command = ["tshark", "-n", "-r", str(path), "-Y", "dns.time", "-T", "fields", "-E", "separator=|"]
    command += [word for field in fields for word in ("-e", field)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    theirs = Counter(
        (nanoseconds(time), flow_id(Packet(0, (src, 53), (dest, int(port)), 17)), nanoseconds(took))
        for time, src, dest, port, took in (line.split("|") for line in lines)
    )
    found, _ = measured(path, Kind.DNS)
    assert theirs.total() > 5
    assert counted(found) == theirs
