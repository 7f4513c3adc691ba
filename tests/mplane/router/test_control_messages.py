"""Start and End are whole packets that taps know by their id, whatever a router changes in them."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether

from machine import needs_root
from sojourn.core.errors import LiveCaptureError
from sojourn.mplane.router.control_messages import ControlKind, Injector, MessageWriter, packet_id_of

HARDWARE = bytes.fromhex("020000000007")


def writer(dscp: int = 46) -> MessageWriter:
    ends = {"source": IPv4Address("10.0.0.1"), "destination": IPv4Address("10.0.1.1")}
    return MessageWriter(hardware=HARDWARE, dscp=dscp, **ends)


def test_a_message_is_a_valid_packet_of_its_class() -> None:
    frame = writer().write(ControlKind.START, 1_794_740_012).frame
    packet = Ether(frame)
    assert packet.dst == "02:00:00:00:00:07"
    assert (packet[IP].src, packet[IP].dst, packet[IP].tos >> 2, packet[IP].ttl) == ("10.0.0.1", "10.0.1.1", 46, 2)
    assert packet[IP].len == len(frame) - 14
    assert packet[ICMP].type == 0
    for layer in (IP, ICMP):
        again = Ether(frame)
        del again[layer].chksum
        assert bytes(again) == frame


def test_its_id_outlives_what_routers_change() -> None:
    message = writer().write(ControlKind.END, 7)
    packet = Ether(message.frame)
    packet.src, packet.dst = "02:00:00:00:00:01", "02:00:00:00:00:02"
    packet[IP].ttl -= 1
    packet[IP].tos = 0
    del packet[IP].chksum
    assert packet_id_of(bytes(packet)) == message.packet_id


def test_messages_of_other_kinds_intervals_classes_and_runs_have_other_ids() -> None:
    one = writer()
    ids = {one.write(kind, number).packet_id for kind in ControlKind for number in (7, 8, 1 << 40)}
    others = {writer().write(ControlKind.START, 7).packet_id, writer(0).write(ControlKind.START, 7).packet_id}
    assert len(ids | others) == 8


@needs_root("INJECTION IS NOT TESTED: it needs root for BPF programs")
def test_an_interface_that_is_not_there_is_told() -> None:
    with Injector() as injector, pytest.raises(LiveCaptureError, match="nosuch0: no message can be sent"):
        injector.inject("nosuch0", writer().write(ControlKind.START, 1).frame)
