"""tshark as an independent reader: one record per frame, of the outermost IP header."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

FIELDS = [
    "frame.protocols",
    "frame.time_epoch",
    "ip.src",
    "ip.dst",
    "ip.proto",
    "ip.id",
    "ip.frag_offset",
    "ip.flags.mf",
    "ip.len",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.nxt",
    "ipv6.hopopts.nxt",
    "ipv6.routing.nxt",
    "ipv6.dstopts.nxt",
    "ipv6.fraghdr.nxt",
    "ipv6.fraghdr.offset",
    "ipv6.fraghdr.more",
    "ipv6.fraghdr.ident",
    "ipv6.plen",
    "tcp.srcport",
    "tcp.dstport",
    "udp.srcport",
    "udp.dstport",
    "sctp.srcport",
    "sctp.dstport",
]
PORTS = {6: "tcp", 17: "udp", 132: "sctp"}


def run_tshark(path: Path, fields: list[str], *options: str) -> list[dict[str, str]]:
    """The fields of every packet, without reassembly, each as its first occurrence.

    Newer versions of tshark also list pcapng's Custom Blocks; having no link type, these are left out
    (capinfos does not count them either).
    """
    if shutil.which("tshark") is None:
        if os.environ.get("CI"):
            pytest.fail("tshark is missing and CI skips nothing")
        pytest.skip("tshark is not installed")
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]
    command += ["-Y", "frame.encap_type"]
    for preference in ("ip.defragment", "ipv6.defragment", "tcp.relative_sequence_numbers"):
        command += ["-o", f"{preference}:FALSE"]
    for field in fields:
        command += ["-e", field]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return [dict(zip(fields, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]


@dataclass(frozen=True)
class OuterPacket:
    """What tshark says about the outermost IP packet of a frame."""

    source: str
    destination: str
    protocol: int
    datagram: tuple[str, ...]
    is_later_fragment: bool
    is_fragment: bool
    ports: tuple[int, int]
    size: int


def outer_packet(frame: dict[str, str]) -> OuterPacket | None:
    """The outermost IP packet, or None where tshark finds no addresses."""
    layers = frame["frame.protocols"].split(":")
    version = next((layer for layer in layers if layer in ("ip", "ipv6")), "")
    if not version or not frame[f"{version}.src"]:
        return None
    if version == "ip":
        protocol = int(frame["ip.proto"])
        offset = int(frame["ip.frag_offset"] or 0)
        more = frame["ip.flags.mf"] in ("1", "True")
        datagram = (frame["ip.src"], frame["ip.dst"], frame["ip.id"], str(protocol))
        size = int(frame["ip.len"])
    else:
        protocol = _last_next_header(frame)
        offset = int(frame["ipv6.fraghdr.offset"] or 0)
        more = frame["ipv6.fraghdr.more"] in ("1", "True")
        datagram = (frame["ipv6.src"], frame["ipv6.dst"], frame["ipv6.fraghdr.ident"])
        size = int(frame["ipv6.plen"]) + 40
    ports = (0, 0)
    name = PORTS.get(protocol, "")
    if name and offset == 0 and name in layers and frame[f"{name}.srcport"]:
        ports = (int(frame[f"{name}.srcport"]), int(frame[f"{name}.dstport"]))
    return OuterPacket(
        frame[f"{version}.src"],
        frame[f"{version}.dst"],
        protocol,
        datagram,
        offset > 0,
        offset > 0 or more,
        ports,
        size,
    )


def _last_next_header(frame: dict[str, str]) -> int:
    """The end of an IPv6 chain, from the next-header field of each kind of extension."""
    names = {0: "hopopts", 43: "routing", 60: "dstopts", 44: "fraghdr"}
    protocol = int(frame["ipv6.nxt"])
    seen: set[int] = set()
    while protocol in names and protocol not in seen and frame[f"ipv6.{names[protocol]}.nxt"]:
        seen.add(protocol)
        is_later = protocol == 44 and int(frame["ipv6.fraghdr.offset"] or 0) > 0
        protocol = int(frame[f"ipv6.{names[protocol]}.nxt"])
        if is_later:
            break
    return protocol
