"""The receipt: what it says of packets, flows and copies, whatever the order, and that it says what it left out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_worlds import parameters_for, receipt_of, sent_packets
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import MismatchError, ParameterError, UsageError, WireError
from sojourn.core.hashing import mix64, salt_for
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.epochs.wire import decode, encode
from sojourn.sketches.ledgers.power_sums import NAME_FUNCTION, PRIME
from sojourn.sketches.ledgers.receipt import EVERY_TAG, TAG_FUNCTION, Receipt, ReceiptParameters

SMALL = ReceiptParameters(groups=4, threshold=3, run=4096, flows=16, repeats=8, remembered=64, salt=5)


def joined(*batches: PacketBatch) -> PacketBatch:
    columns = [[batch.columns()[name] for batch in batches] for name in batches[0].columns()]
    return PacketBatch(*map(np.concatenate, columns))


def plain(parameters: ReceiptParameters, batch: PacketBatch) -> dict[str, object]:
    """The model: flows' packets and times, repeats, and power sums of what is left, in plain Python."""
    seen: set[int] = set()
    flows: dict[int, list[int]] = {}
    repeats, counts = [], Counter[int]()
    sums = np.zeros((parameters.groups, parameters.threshold), object)
    for flow_id, packet_id, time_ns in zip(
        *(column.tolist() for column in (batch.flow_id, batch.packet_id, batch.time_ns)), strict=True
    ):
        tag = max(mix64(flow_id ^ salt_for(TAG_FUNCTION, parameters.salt)) >> 32, 1)
        if packet_id in seen:
            repeats.append((packet_id, tag, time_ns))
            continue
        seen.add(packet_id)
        row = flows.setdefault(tag, [0, 0])
        row[0], row[1] = row[0] + 1, row[1] + time_ns
        hashed = mix64(packet_id ^ salt_for(NAME_FUNCTION, parameters.salt))
        name = (hashed >> 32) + 1
        name = name if name < PRIME else name - PRIME + 1
        group = hashed % parameters.groups
        counts[group] += 1
        for k in range(parameters.threshold):
            sums[group, k] = (sums[group, k] + pow(name, k + 1, PRIME)) % PRIME
    return {"flows": flows, "repeats": repeats, "counts": counts, "sums": sums.tolist()}


def centred(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def test_thousands_of_packets_equal_the_model() -> None:
    parameters = ReceiptParameters(groups=4, threshold=30, run=600, flows=64, repeats=900, remembered=4000, salt=3)
    batch = sent_packets(1, 3000)
    again = batch.select(np.random.default_rng(2).integers(0, 3000, 40))
    batch = joined(batch, again)
    receipt = Receipt(parameters)
    for start in range(0, len(batch), 700):
        receipt.record_batch(batch.select(slice(start, start + 700)))
    model = plain(parameters, batch)
    assert receipt.power_sums.sums.tolist() == model["sums"]
    assert receipt.power_sums.counts.tolist() == [model["counts"][group] for group in range(4)]
    flows = receipt.flows
    assert flows.tag.tolist() == sorted(model["flows"])
    told = zip(flows.packets.tolist(), flows.time_sum.tolist(), strict=True)
    assert list(told) == [(n, centred(total, 52)) for _, (n, total) in sorted(model["flows"].items())]
    repeats = receipt.repeats
    assert (
        list(zip(repeats.packet_id.tolist(), repeats.tag.tolist(), repeats.time_ns.tolist(), strict=True))
        == model["repeats"]
    )


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(0, 300))
@settings(deadline=None, max_examples=30)
def test_merged_receipts_are_that_of_both_streams(seed: int, first: int, second: int) -> None:
    batch = sent_packets(seed, 600, flows=12)
    a, b = batch.select(slice(0, first)), batch.select(slice(first, first + second))
    left, right = receipt_of(SMALL, a), receipt_of(SMALL, b)
    assert left.merge(right) == receipt_of(SMALL, a, b)
    assert left.merge(right) == right.merge(left)


@given(st.permutations(range(40)))
@settings(deadline=None, max_examples=30)
def test_the_order_of_packets_makes_no_difference(order: list[int]) -> None:
    batch = sent_packets(7, 40, flows=9)
    assert receipt_of(SMALL, batch.select(np.array(order))) == receipt_of(SMALL, batch)


@given(st.integers(0, 2**32), st.integers(0, 2000))
@settings(deadline=None, max_examples=30)
def test_what_is_sent_is_what_is_read(seed: int, packets: int) -> None:
    batch = sent_packets(seed, packets, flows=20)
    receipt = receipt_of(parameters_for(2000, 0.01, salt=seed), joined(batch, batch.select(slice(0, 30))))
    epoch = Epoch("a", "b", 0, receipt, None, Cut())
    assert decode(encode(epoch)).sketch == receipt


def test_a_receipt_is_as_long_as_its_packets_need() -> None:
    """Planned for five times as many, and ten times the flows, of which each has 100 packets."""
    parameters = parameters_for(250_000, 0.01, run=4096, flows=5_000)
    found = receipt_of(parameters, sent_packets(1, 50_000, flows=500))
    assert 8 * len(encode(Epoch("a", "b", 0, found, None, Cut()))) / 50_000 < 2.0


def test_flows_without_a_row_are_dropped_whole() -> None:
    parameters = ReceiptParameters(groups=1, threshold=4, flows=16, remembered=5000)
    batch = sent_packets(3, 4000, flows=60)
    receipt = receipt_of(parameters, batch)
    tags = parameters.tags(batch.flow_id)
    assert receipt.limit < EVERY_TAG
    kept = Counter(tags[tags < receipt.limit].tolist())
    assert dict(zip(receipt.flows.tag.tolist(), receipt.flows.packets.tolist(), strict=True)) == dict(kept)
    assert sum(kept.values()) + int(receipt.column("dropped")[0]) == 4000
    half = receipt_of(parameters, batch.select(slice(0, 2000))), receipt_of(parameters, batch.select(slice(2000, None)))
    merged = half[0].merge(half[1])
    expected = Counter(tags[tags < merged.limit].tolist())
    assert dict(zip(merged.flows.tag.tolist(), merged.flows.packets.tolist(), strict=True)) == dict(expected)


def test_repeats_beyond_the_list_are_counted() -> None:
    batch = sent_packets(4, 50)
    receipt = receipt_of(SMALL, batch, batch)
    assert (len(receipt.repeats), receipt.unlisted) == (8, 42)
    assert receipt.merge(receipt_of(SMALL)).unlisted == 42


def test_packets_are_known_again_in_the_next_receipt() -> None:
    batch = sent_packets(5, 40)
    first, second = Receipt(SMALL), Receipt(SMALL)
    first.record_batch(batch)
    second.follow(first)
    second.record_batch(batch.select(slice(0, 5)))
    assert second.repeats.packet_id.tolist() == batch.packet_id[:5].tolist()


def test_a_shifted_receipt_is_that_of_a_clock_ahead() -> None:
    batch = sent_packets(6, 300, flows=10)
    batch = joined(batch, batch.select(slice(0, 3)))
    later = PacketBatch(batch.flow_id, batch.packet_id, batch.time_ns + 1234, batch.size_bytes)
    shifted, recorded = receipt_of(SMALL, batch).shifted(1234), receipt_of(SMALL, later)
    for name in ("gap", "packets", "sum", "power_sum", "count", "time"):
        assert shifted.column(name).tolist() == recorded.column(name).tolist(), name


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ParameterError, match="3 groups"):
        ReceiptParameters(groups=3, threshold=2, flows=1)
    with pytest.raises(ParameterError, match="sums"):
        ReceiptParameters(groups=2**16, threshold=1000, flows=1)
    receipt = receipt_of(SMALL, sent_packets(1, 10))
    with pytest.raises(UsageError, match="cannot come back"):
        receipt.subtract(receipt)
    with pytest.raises(UsageError, match="records no more"):
        receipt.copy().record_batch(sent_packets(1, 1))


@pytest.mark.parametrize(
    ("table", "row", "column", "value"),
    [
        (0, 0, 0, 3),
        (0, 0, 1, 0),
        (0, 0, 2, 1),
        (1, 3, 0, 5),
        (2, 0, 0, PRIME),
        (3, 0, 0, 2**32 - 1),
        (3, 15, 1, 1),
        (4, 5, 2, 1),
    ],
)
def test_tables_that_recording_could_not_fill_are_refused(table: int, row: int, column: int, value: int) -> None:
    receipt = Receipt(SMALL)
    receipt.record_batch(sent_packets(1, 20, flows=5))
    receipt.freeze()
    receipt.arrays[table].flags.writeable = True
    receipt.arrays[table][row, column] = value
    with pytest.raises(MismatchError):
        receipt.check()
    with pytest.raises(WireError):
        decode(encode(Epoch("a", "b", 0, receipt)))
