"""Flow ids and keys: exactly those that `core.keys` gives, for every keying."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packet_builders import ethernet, frames_of, ipv4, ipv6, tcp, udp

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.decode.ids import FlowKeying
from sojourn.core.errors import ParameterError
from sojourn.core.keys import DestinationKey, FlowKey, HostPairKey, TrafficKey, VlanFlowKey, key_id

addresses_4 = st.integers(0, 2**32 - 1).map(lambda n: str(ip_address(n.to_bytes(4, "big"))))
addresses_6 = st.integers(0, 2**128 - 1).map(lambda n: str(ip_address(n.to_bytes(16, "big"))))
ports = st.integers(0, 65535)


def decode(frame: bytes, key: str) -> tuple[int, int, TrafficKey]:
    """Flow id, reverse id and the table's key of one packet."""
    decoder = Decoder(DecodeOptions(keying=FlowKeying.parse(key)))
    batch, transport = decoder.decode_transport(frames_of([frame]))
    assert transport.flow_id.tolist() == batch.flow_id.tolist() == decoder.flows.ids.tolist()
    return int(batch.flow_id[0]), int(transport.reverse_id[0]), decoder.flows.key(0)


def check(frame: bytes, key: str, forward: TrafficKey, backward: TrafficKey) -> None:
    flow_id, reverse_id, found = decode(frame, key)
    assert found == forward
    assert flow_id == key_id(forward)
    assert reverse_id == key_id(backward)


@given(
    source=addresses_4,
    destination=addresses_4,
    source_port=ports,
    destination_port=ports,
    length=st.integers(0, 32),
)
def test_ipv4_keys(source: str, destination: str, source_port: int, destination_port: int, length: int) -> None:
    packet = ipv4(tcp(b"", source_port, destination_port), 6, source, destination)
    frame = ethernet(packet, tags=[(0x8100, 4095), (0x8100, 0)])
    ends = ip_address(source), ip_address(destination)
    flow = FlowKey(ends[0], source_port, ends[1], destination_port, 6)
    check(frame, "five-tuple", flow, flow.reversed())
    check(frame, "host-pair", HostPairKey(*ends), HostPairKey(ends[1], ends[0]))
    check(frame, "vlan+five-tuple", VlanFlowKey((4095, 0), flow), VlanFlowKey((4095, 0), flow.reversed()))
    networks = [DestinationKey(ip_network(f"{ip}/{length}", strict=False)) for ip in (destination, source)]
    check(frame, f"prefix/{length}", *networks)
    check(frame, "dest", *(DestinationKey(ip_network(ip)) for ip in (destination, source)))


@given(
    source=addresses_6,
    destination=addresses_6,
    source_port=ports,
    destination_port=ports,
    length=st.integers(0, 128),
)
def test_ipv6_keys(source: str, destination: str, source_port: int, destination_port: int, length: int) -> None:
    packet = ipv6(udp(b"", source_port, destination_port), 17, source, destination)
    frame = ethernet(packet, 0x86DD, tags=[(0x88A8, n) for n in range(1, 6)])
    ends = ip_address(source), ip_address(destination)
    flow = FlowKey(ends[0], source_port, ends[1], destination_port, 17)
    check(frame, "five-tuple", flow, flow.reversed())
    check(frame, "host-pair", HostPairKey(*ends), HostPairKey(ends[1], ends[0]))
    outer = (1, 2, 3, 4)
    check(frame, "vlan+five-tuple", VlanFlowKey(outer, flow), VlanFlowKey(outer, flow.reversed()))
    networks = [DestinationKey(ip_network(f"{ip}/{length}", strict=False)) for ip in (destination, source)]
    check(frame, f"prefix/7,{length}", *networks)


def test_protocols_without_ports_have_ports_0() -> None:
    _, _, key = decode(ethernet(ipv4(b"\x08\0\0\0\0\1\0\1", 1)), "five-tuple")
    assert str(key) == "10.0.0.1 > 10.0.0.2 icmp"


@pytest.mark.parametrize("text", ["", "five", "prefix/", "prefix/129", "prefix/33,1", "prefix/1,129", "vlan"])
def test_a_wrong_keying_is_refused(text: str) -> None:
    with pytest.raises(ParameterError):
        FlowKeying.parse(text)
