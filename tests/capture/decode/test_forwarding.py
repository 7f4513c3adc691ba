"""Class and hops left are read from the IP header, whatever comes before it."""

from __future__ import annotations

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet

from sojourn.capture.decode.decoder import Decoder
from sojourn.capture.decode.frames import Frames
from sojourn.capture.filters import LINK_ETHERNET


def frames_of(packets: list[bytes]) -> Frames:
    size = np.array([len(packet) for packet in packets], np.int64)
    offset = np.cumsum(size) - size
    link = np.full(len(packets), LINK_ETHERNET, np.int64)
    return Frames(np.frombuffer(b"".join(packets), np.uint8), offset, size, size, np.arange(len(packets)), link)


def ip_of(version: int, dscp: int, hops: int) -> Packet:
    if version == 4:
        return IP(src="10.0.0.1", dst="10.0.0.2", tos=dscp << 2 | 3, ttl=hops)
    return IPv6(src="fd00::1", dst="fd00::2", tc=dscp << 2 | 3, hlim=hops, fl=0xFFFFF)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("tagged", [False, True])
def test_the_header_says_class_and_hops_left(version: int, tagged: bool) -> None:
    wanted = [(0, 1), (46, 64), (63, 255), (10, 2)]
    link = Ether() / Dot1Q(vlan=7) if tagged else Ether()
    packets = [bytes(link / ip_of(version, dscp, hops) / UDP()) for dscp, hops in wanted]
    batch, columns = Decoder().decode_forwarding(frames_of([b"\xff" * 60, *packets]))
    assert len(batch) == len(wanted)
    assert list(zip(columns.dscp.tolist(), columns.hops_left.tolist(), strict=True)) == wanted
    ids = {int(i) for i in batch.packet_id}
    assert len(ids) == 1  # neither is part of a packet's identity
