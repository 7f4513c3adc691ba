"""Flows behind a translator are paired with those before it by the packets that both points show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packet_builders import ethernet, frames_of, ipv4, udp

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.decode.ids import Identity
from sojourn.capture.flows.table import FlowTable
from sojourn.capture.flows.translation import KEPT, FlowFingerprints, FlowNames, Witnesses
from sojourn.core.arrays import PacketBatch
from sojourn.core.hash_kernels import mix_column

MANY = 1 << 20


def batch(flows: list[int], packets: list[int]) -> PacketBatch:
    return PacketBatch.of(flows, packets, [0] * len(flows))


def fingerprints(rows: list[tuple[int, int]], max_flows: int = MANY) -> FlowFingerprints:
    found = FlowFingerprints(max_flows)
    found.add(batch([flow for flow, _ in rows], [packet for _, packet in rows]))
    return found


def table_of(*flows: int) -> FlowTable:
    table = FlowTable(MANY)
    new = table.update(np.array(flows, np.uint64), *np.zeros((2, len(flows)), np.int64))
    keys = np.zeros((len(new), 48), np.uint8)
    keys[:, 0] = flows
    table.add_keys(keys, np.ones(len(new), np.uint8))
    return table


def named(sent: list[tuple[int, int]], got: list[tuple[int, int]]) -> tuple[dict[int, int], int]:
    witnesses = Witnesses(fingerprints(got))
    witnesses.add(batch([flow for flow, _ in sent], [packet for _, packet in sent]))
    names = FlowNames.of(witnesses, table_of(*dict.fromkeys(f for f, _ in sent)))
    return dict(zip(names.seen.tolist(), names.named.tolist(), strict=True)), names.ambiguous


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 200)), max_size=300), st.integers(1, 100))
def test_the_lowest_hashes_of_each_flow_are_kept_whatever_the_chunks(rows: list[tuple[int, int]], chunk: int) -> None:
    whole, parts = fingerprints(rows), FlowFingerprints(MANY)
    for start in range(0, len(rows), chunk):
        some = rows[start : start + chunk]
        parts.add(batch([flow for flow, _ in some], [packet for _, packet in some]))
    lowest = {
        flow: sorted(mix_column(np.array(sorted({p for f, p in rows if f == flow}), np.uint64)).tolist())[:KEPT]
        for flow, _ in rows
    }
    hashes = [h for kept in lowest.values() for h in kept]
    expected = sorted((h, flow) for flow, kept in lowest.items() for h in kept if hashes.count(h) == 1)
    for found in (whole, parts):
        assert list(zip(*(column.tolist() for column in found.packets()), strict=True)) == expected


def test_flows_beyond_the_limit_are_counted() -> None:
    found = fingerprints([(flow, flow) for flow in range(1, 6)] * 2, max_flows=3)
    assert found.overflow_packets == 4
    assert sorted(found.packets()[1].tolist()) == [1, 2, 3]


def test_flows_are_paired_by_common_packets() -> None:
    assert named([(1, 10), (1, 11), (2, 20)], [(8, 11), (9, 20), (7, 99)]) == ({8: 1, 9: 2}, 0)


def test_two_flows_behind_may_be_one_before() -> None:
    assert named([(1, 10), (1, 11)], [(8, 10), (9, 11)]) == ({8: 1, 9: 1}, 0)


def test_a_flow_that_shows_packets_of_two_takes_the_name_of_the_most_and_is_counted() -> None:
    assert named([(1, 10), (2, 20), (2, 21)], [(8, 10), (8, 20), (8, 21)]) == ({8: 2}, 1)


def test_a_packet_that_two_flows_have_in_common_tells_nothing() -> None:
    assert named([(1, 10), (2, 10), (2, 20)], [(8, 10), (9, 10), (9, 20)]) == ({9: 2}, 0)
    assert named([(1, 10), (2, 10)], [(8, 10)]) == ({}, 0)


def test_a_single_packet_of_many_that_arrived_is_enough() -> None:
    sent = [(1 + number % 2, number) for number in range(2000)]
    assert named(sent, [(8, 1000), (9, 1701)]) == ({8: 1, 9: 2}, 0)


def test_captures_may_begin_apart() -> None:
    sent = [(1, number) for number in range(1500)]
    assert named(sent, [(8, number) for number in range(1000, 3000)]) == ({8: 1}, 0)


@pytest.mark.parametrize("identity", [Identity.PAYLOAD, Identity.PAYLOAD_ALONE])
def test_a_decoder_with_names_gives_the_senders_ids_and_keys(identity: Identity) -> None:
    inside = [ethernet(ipv4(udp(b"number %d" % n, 1000 + n % 2, 53))) for n in range(8)]
    outside = [ethernet(ipv4(udp(b"number %d" % n, 61_000 + n % 2, 53), source="192.0.2.1")) for n in range(8)]
    sender, receiver = (Decoder(DecodeOptions(identity=identity)) for _ in range(2))
    prints = FlowFingerprints(MANY)
    prints.add(receiver.decode(frames_of(outside)))
    witnesses = Witnesses(prints)
    witnesses.add(sender.decode(frames_of(inside)))
    names = FlowNames.of(witnesses, sender.flows)
    before = Decoder(DecodeOptions(identity=identity, names=FlowNames.none()))
    after = Decoder(DecodeOptions(identity=identity, names=names))
    sent, got = before.decode(frames_of(inside)), after.decode(frames_of(outside))
    assert sent.packet_id.tolist() == got.packet_id.tolist()
    assert sent.flow_id.tolist() == got.flow_id.tolist() == sender.decode(frames_of(inside)).flow_id.tolist()
    assert before.flows.keys() == after.flows.keys() == sender.flows.keys()


def test_the_same_payload_in_two_flows_is_two_packets() -> None:
    packets = [ethernet(ipv4(udp(b"alike", port, 53))) for port in (1000, 1001)]
    plain = Decoder(DecodeOptions(identity=Identity.PAYLOAD)).decode(frames_of(packets))
    named_apart = Decoder(DecodeOptions(identity=Identity.PAYLOAD, names=FlowNames.none())).decode(frames_of(packets))
    assert len(set(plain.packet_id.tolist())) == 1
    assert len(set(named_apart.packet_id.tolist())) == 2
