"""Filters accept what tcpdump accepts, refuse what it refuses, and count what they cannot judge."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from plain_pcap import frames_of, read_bytes, read_pcap

from sojourn.capture.decode.frames import Frames
from sojourn.capture.filters import PacketFilter, select_rows
from sojourn.capture.live.ring import attach_program, with_tagged_frames
from sojourn.core.errors import UsageError

EXPRESSIONS = [
    "tcp", "udp", "icmp", "icmp6", "sctp", "ip", "ip6", "arp", "not tcp", "not ip and not ip6",
    "host 141.142.228.5", "src host 10.0.0.1", "dst host 127.0.0.1", "host fe80::1",
    "net 10.0.0.0/8", "src net 192.168.0.0/16", "dst net 172.16.0.0/12", "ip6 net fe80::/10",
    "port 80", "tcp port 443", "udp port 53", "src port 80", "dst port 2152", "portrange 1000-2000",
    "src portrange 1-1023", "tcp dst portrange 1024-65535",
    "tcp port 80 or (udp and not port 53)", "ip proto 47", "ip6 proto 44",
    "vlan", "vlan 100", "vlan and tcp", "vlan and vlan and ip", "not vlan", "mpls",
    "vlan and mpls", "pppoes and ip",
    "ether proto 0x8100", "ether multicast", "len > 200", "less 100", "greater 1000 and tcp",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0", "ip[6:2] & 0x1fff != 0", "ip[8] * 3 % 7 == 1", "ip[8] / 2 > 20",
    "(ip[2:2] - ((ip[0] & 0xf) << 2)) > 100", "icmp[icmptype] == icmp-echo",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
]  # fmt: skip


@pytest.fixture(scope="module")
def tcpdump() -> str:
    path = shutil.which("tcpdump")
    if path is None:
        message = "tcpdump is not installed: filters are not compared with it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return path


def tcpdump_count(tcpdump: str, raw: bytes, expression: str) -> int | None:
    """How many packets tcpdump accepts; None when it refuses the expression for the file's link type."""
    command = [tcpdump, "--count", "-r", "-", expression]
    done = subprocess.run(command, input=raw, capture_output=True, timeout=300, check=False)
    return int(done.stdout.split()[0]) if done.returncode == 0 else None


def capture_files(shared_data: Path) -> list[Path]:
    return sorted(p for p in (shared_data / "captures").iterdir() if ".pcapng" not in p.name)


@pytest.mark.parametrize("part", range(4))
def test_a_filter_accepts_as_many_packets_of_a_file_as_tcpdump(part: int, shared_data: Path, tcpdump: str) -> None:
    compared = matched = 0
    for path in capture_files(shared_data)[part::4]:
        raw = read_bytes(path)
        frames = read_pcap(raw)
        for expression in EXPRESSIONS:
            expected = tcpdump_count(tcpdump, raw, expression)
            found, ignored = PacketFilter(expression).apply(frames)
            assert len(found) == (expected or 0), (path.name, expression)
            assert len(found) + sum(ignored.values()) == len(frames)
            compared += expected is not None
            matched += len(found)
    assert compared > 150
    assert matched > 1000


def test_a_filter_picks_the_packets_that_tcpdump_picks(shared_data: Path, tcpdump: str, tmp_path: Path) -> None:
    raw = read_bytes(shared_data / "captures" / "zeek-mixed-vlan-mpls.pcap")
    picked, _ = PacketFilter("vlan and ip").apply(read_pcap(raw))
    written = tmp_path / "picked.pcap"
    command = [tcpdump, "-r", "-", "-w", str(written), "vlan and ip"]
    subprocess.run(command, input=raw, capture_output=True, timeout=300, check=True)
    theirs = read_pcap(written.read_bytes())
    assert len(picked) > 0
    assert picked.time_ns.tolist() == theirs.time_ns.tolist()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_kernel_takes_the_program_of_every_expression(expression: str) -> None:
    only_ethernet = any(word in expression for word in ("vlan", "mpls", "pppoes", "ether", "arp"))
    for link in (1,) if only_ethernet else (1, 101):
        program = PacketFilter(expression).program(link, snap_length=96)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
            attach_program(endpoint, program)
            attach_program(endpoint, with_tagged_frames(program, 96))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("port and", "syntax error"),
        ("host 1.2.3.4 and (", "syntax error"),
        ("port 70000", "illegal port number"),
        ("net 10.0.0.0/40", "mask length"),
        ("tcp and udp", "rejects all"),
        ("inbound", "known to the kernel only"),
        ("outbound and tcp", "known to the kernel only"),
        ("ip protochain 6", "jumps backwards"),
        ("tcp\0", "65536 characters"),
        ("tcp or " * 20000 + "udp", "65536 characters"),
        ("(" * 60000, "filter"),
        ("host 1.1.1.1 and not " * 3000 + "tcp", "filter"),
    ],
)
def test_a_filter_that_cannot_work_is_refused_in_one_line(expression: str, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        PacketFilter(expression)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_frames_of_a_link_type_that_libpcap_cannot_filter_are_counted() -> None:
    ethernet = frames_of([bytes(12) + b"\x08\x00" + bytes(40)] * 3)
    radio = frames_of([bytes(60)] * 2, link=195)
    mixed = Frames(
        np.concatenate([ethernet.data, radio.data]),
        np.concatenate([ethernet.offset, radio.offset + len(ethernet.data)]),
        *(
            np.concatenate([getattr(ethernet, name), getattr(radio, name)])
            for name in ("captured", "length", "time_ns", "link")
        ),
    )
    found, ignored = PacketFilter("ip").apply(mixed)
    assert found.link.tolist() == [1, 1, 1]
    (reason,) = ignored
    assert "IEEE 802.15.4" in reason
    assert ignored[reason] == 2


@pytest.mark.parametrize("family", [24, 28, 30])
@pytest.mark.parametrize("order", ["<", ">"])
def test_ipv6_over_bsd_loopback_is_found_whichever_system_captured_it(family: int, order: str) -> None:
    packet = struct.pack(order + "I", family) + b"\x60" + bytes(5) + b"\x11\x40" + bytes(32)
    frames = frames_of([packet, struct.pack(order + "I", 2) + b"\x45" + bytes(19)], link=0)
    assert PacketFilter("ip6").apply(frames)[0].offset.tolist() == [0]
    assert PacketFilter("ip").apply(frames)[0].offset.tolist() == [len(packet)]


def test_an_empty_expression_accepts_everything() -> None:
    frames = frames_of([bytes(20), bytes(1), b""])
    found, ignored = PacketFilter("  ").apply(frames)
    assert found is frames
    assert ignored == {}


def test_selecting_rows_leaves_the_bytes_where_they_are() -> None:
    frames = frames_of([b"a", b"bb", b"ccc"])
    chosen = select_rows(frames, np.array([False, True, False]))
    assert chosen.data is frames.data
    assert (chosen.offset.tolist(), chosen.captured.tolist()) == ([1], [2])
