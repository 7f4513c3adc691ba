"""The coordinated sample: fixed memory, fair to small flows, all packets below a threshold that is known."""

from __future__ import annotations

import numpy as np
import pytest

import plain_models
import strategies as own
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import MismatchError, SketchFullError, UsageError, WireError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode, encode
from sojourn.sketches.sample import Sample, SampleParameters


def stream(seed: int, packets: int, flows: int) -> PacketBatch:
    """Few elephants, many mice."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 2**64, flows, dtype=np.uint64)
    weights = random.pareto(1.1, flows) + 0.01
    flow = random.choice(flows, packets, p=weights / weights.sum())
    return PacketBatch(
        ids[flow],
        random.integers(0, 2**64, packets, dtype=np.uint64),
        10**18 + random.integers(0, 10**10, packets),
        np.zeros(packets, np.int64),
    )


def recorded(parameters: SampleParameters, *batches: PacketBatch) -> Sample:
    sample = Sample(parameters)
    for batch in batches:
        assert sample.record_batch(batch) == len(batch)
    return sample


@pytest.mark.parametrize("groups", [1, 7, 400])
def test_thousands_of_packets_equal_the_model_in_any_order_and_any_parts(groups: int) -> None:
    """Long enough that packets wait, are sorted in and cut dozens of times."""
    parameters = SampleParameters(slots=500, groups=groups, salt=3)
    batch = stream(1, 6000, 150)
    rows = list(zip(*(column.tolist() for column in batch.columns().values()), strict=True))
    whole = recorded(parameters, batch)
    model = plain_models.sample(parameters, rows)
    for table in parameters.tables():
        for field in table.fields:
            assert whole.column(field.name).tolist() == model[field.name], field.name
    order = np.random.default_rng(2).permutation(len(batch))
    assert recorded(parameters, batch.select(order)) == whole
    parts = [recorded(parameters, batch.select(slice(i, i + 999))) for i in range(0, len(batch), 999)]
    merged = parts[0]
    for part in parts[1:]:
        merged = part.merge(merged)
    assert merged == whole


def test_memory_is_fixed_and_counts_what_waits() -> None:
    parameters = SampleParameters(slots=800, groups=100)
    slot_bits, group_bits = 32 + 16 + 40, 32 + 32 + 10
    assert parameters.memory_bits == 800 * slot_bits + 100 * group_bits + 50 * (slot_bits + 7)
    sample = recorded(parameters, stream(3, 50_000, 3000))
    assert sample.memory_bits == parameters.memory_bits
    held = {name: array.nbytes for name, array in vars(sample).items() if isinstance(array, np.ndarray)}
    assert held == {"_waiting": 50 * 4 * 8, "_pool": 850 * 3 * 8}
    assert len(encode(Epoch("n", "s", 0, sample))) * 8 < parameters.memory_bits
    assert len(sample.kept()) <= 800


def test_the_pool_is_used_up_to_less_than_one_slot_per_group_that_was_cut() -> None:
    parameters = SampleParameters(slots=800, groups=100)
    sample = recorded(parameters, stream(4, 50_000, 3000))
    assert 800 - len(sample.kept()) < np.count_nonzero(sample.shares < 1)


def test_an_elephant_takes_no_slot_from_small_flows() -> None:
    """1000 mice of 5 packets each and one flow of 200 000: the mice are kept whole but where they share its group."""
    random = np.random.default_rng(5)
    mice = np.repeat(random.integers(0, 2**64, 1000, dtype=np.uint64), 5)
    flow = random.permutation(np.r_[mice, np.full(200_000, 77, np.uint64)])
    count = len(flow)
    ids = random.integers(0, 2**64, count, dtype=np.uint64)
    batch = PacketBatch(flow, ids, np.arange(count), np.zeros(count, np.int64))
    parameters = SampleParameters(slots=6000, groups=500)
    sample = recorded(parameters, batch)
    group, _ = parameters.locate(np.unique(mice))
    elephant = parameters.locate(np.array([77], np.uint64))[0][0]
    assert (sample.shares[group[group != elephant]] == 1).all()
    assert np.mean(group == elephant) < 0.02
    assert sample.column("held")[elephant] > 900


def test_a_group_keeps_everything_below_its_threshold_and_the_share_is_true() -> None:
    """Five standard deviations of a binomial per group: false alarm below 10⁻⁴."""
    parameters = SampleParameters(slots=1000, groups=20)
    sample = recorded(parameters, stream(6, 60_000, 2000))
    packets, held = sample.column("packets"), sample.column("held")
    expected = packets * sample.shares
    assert (np.abs(held - expected) < 5 * np.sqrt(expected + 1)).all()
    assert packets.sum() == 60_000


def test_a_flood_of_identical_packets_lowers_a_threshold_only_to_their_hash() -> None:
    parameters = SampleParameters(slots=100, groups=1)
    flood = PacketBatch.of([1] * 5000, [42] * 5000, range(5000))
    rest = stream(7, 3000, 10)
    sample = recorded(parameters, flood)
    assert len(sample.kept()) == 0
    assert sample.thresholds[0] == plain_models.mix64(42 ^ plain_models.salt_for((1 << 24) + 1, 0)) >> 32
    assert recorded(parameters, rest, flood) == recorded(parameters, flood, rest)


def test_a_sample_is_full_when_a_group_cannot_count_on() -> None:
    sample = Sample(SampleParameters(slots=4, groups=1, count_bits=4))
    assert sample.record_batch(PacketBatch.of([1] * 20, range(20), range(20))) == 15
    with pytest.raises(SketchFullError, match="take a snapshot"):
        sample.record(1, 99, 5)
    with pytest.raises(SketchFullError, match="leave its 4 bits"):
        sample.merge(sample)


def test_subtracting_is_refused() -> None:
    sample = Sample(SampleParameters(slots=4, groups=1))
    with pytest.raises(UsageError, match="what a sample dropped cannot come back"):
        sample.subtract(sample)


def test_another_clock_changes_only_times() -> None:
    parameters = SampleParameters(slots=50, groups=5, time_bits=36)
    batch = stream(8, 40, 5)
    later = PacketBatch(batch.flow_id, batch.packet_id, batch.time_ns + 12_345, batch.size_bytes)
    assert recorded(parameters, batch).shifted(12_345) == recorded(parameters, later)


def broken(change) -> Sample:
    """A sample whose tables were changed after recording."""
    sample = recorded(SampleParameters(slots=20, groups=2), stream(9, 100, 10))
    change(*sample.arrays)
    return sample


BREAKS = {
    "too many held": lambda groups, _: groups.__setitem__((0, 2), 21),
    "counts that do not add up": lambda groups, _: groups.__setitem__((0, 1), 50),
    "a hash of 0": lambda _, slots: slots.__setitem__((0, 0), 0),
    "a hash above the threshold": lambda groups, _: groups.__setitem__((0, 0), 2**32 - 1),
    "out of order": lambda _, slots: slots.__setitem__(slice(0, 2), slots[[1, 0]]),
    "an empty slot in use": lambda groups, _: groups.__setitem__((1, 2), groups[1, 2] - 1),
}


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS)
def test_tables_that_no_recording_gives_are_refused_on_the_wire(change) -> None:
    sample = broken(change)
    with pytest.raises(MismatchError):
        sample.check()
    with pytest.raises(WireError):
        decode(encode_as_it_is(sample))
    assert decode(encode_as_it_is(broken(lambda *_: None))).recorded == 100


def encode_as_it_is(sample: Sample) -> bytes:
    """The bytes of an epoch whose snapshot is the sample itself: a copy would put its tables right."""
    epoch = Epoch("n", "s", 0, Sample(sample.parameters))
    object.__setattr__(epoch, "sketch", sample)
    return encode(epoch)


def test_what_decodes_merges_like_what_was_recorded() -> None:
    parameters = SampleParameters(slots=60, groups=4)
    first, second = (recorded(parameters, stream(seed, 400, 10)) for seed in (10, 11))
    again = decode(encode(Epoch("n", "s", 0, first))).sketch
    assert again.merge(second) == first.merge(second)
    own_batch = own.packet_batch([(1, 2, 3, 0)])
    with pytest.raises(UsageError, match="cannot record"):
        Epoch("n", "s", 0, first).sketch.record_batch(own_batch)
