"""Hypothesis strategies: parameters of every sketch, and the streams to record into them."""

from __future__ import annotations

from hypothesis import strategies as st

from sojourn.core.arrays import MeasurementBatch, PacketBatch
from sojourn.sketches.bucket_array import SPREADINGS, BucketArrayParameters
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.sample import SampleParameters
from sojourn.sketches.sds import SdsParameters

WORDS = st.integers(0, 2**64 - 1)
FEW_IDS = st.one_of(st.integers(0, 6), WORDS)
TIMES = st.integers(1_700_000_000_000_000_000, 1_700_000_100_000_000_000)
SHARES = st.sampled_from([0.01, 0.125, 0.25, 0.5, 1.0])


def packets(max_size: int = 40):
    row = st.tuples(FEW_IDS, WORDS, TIMES, st.integers(0, 1500))
    return st.lists(row, max_size=max_size)


def measurements(max_size: int = 40, low: int = 0, high: int = 1000):
    row = st.tuples(FEW_IDS, st.integers(low, high), WORDS)
    return st.lists(row, max_size=max_size)


def packet_batch(rows) -> PacketBatch:
    return PacketBatch.of(*([row[i] for row in rows] for i in range(4)))


def measurement_batch(rows) -> MeasurementBatch:
    ids, values, sequences = ([row[i] for row in rows] for i in range(3))
    return MeasurementBatch.of(ids, values, list(range(len(rows))), sequences)


@st.composite
def any_bucket_array(draw):
    """Bucket arrays of all widths, narrow ones included."""
    signed = draw(st.booleans())
    return BucketArrayParameters(
        buckets=draw(st.integers(1, 40)),
        per_instance=draw(st.integers(1, 12)),
        bits=draw(st.integers(1, 64)),
        count_bits=draw(st.integers(0, 64)),
        signed=signed,
        wrap=signed and draw(st.booleans()),
        spreading=draw(st.sampled_from(SPREADINGS)),
        salt=draw(WORDS),
    )


@st.composite
def lda_parameters(draw):
    nested = draw(st.booleans())
    shares = sorted(draw(st.sets(SHARES, min_size=1, max_size=4)), reverse=True)
    if not nested:
        shares = [p / (2 * len(shares)) for p in shares]
    return LdaParameters(
        rows=draw(st.integers(1, 9)),
        shares=tuple(shares),
        nested=nested,
        sum_bits=draw(st.integers(56, 64)),
        count_bits=draw(st.integers(8, 64)),
        digest_bits=draw(st.sampled_from([0, 1, 16, 63, 64])),
        max_delay_ns=10**9,
        salt=draw(WORDS),
    )


@st.composite
def lds_parameters(draw):
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    return LdsParameters(
        rows=rows,
        columns=columns,
        spread=draw(st.integers(1, columns)),
        shares=tuple(draw(st.lists(SHARES, min_size=rows, max_size=rows))),
        sum_bits=draw(st.integers(56, 64)),
        count_bits=draw(st.integers(16, 64)),
        digest_bits=draw(st.sampled_from([0, 1, 16, 64])),
        byte_bits=draw(st.sampled_from([0, 32, 64])),
        max_delay_ns=10**9,
        salt=draw(WORDS),
    )


@st.composite
def sample_parameters(draw):
    """Hashes of few bits make ties, few slots make cuts."""
    slots = draw(st.integers(1, 30))
    return SampleParameters(
        slots=slots,
        groups=draw(st.integers(1, min(slots, 8))),
        hash_bits=draw(st.sampled_from([8, 9, 32, 42])),
        flow_bits=draw(st.sampled_from([1, 16, 32])),
        time_bits=draw(st.sampled_from([34, 40, 63])),
        count_bits=draw(st.sampled_from([8, 32, 63])),
        max_delay_ns=10**9,
        salt=draw(WORDS),
    )


@st.composite
def sds_parameters(draw):
    return SdsParameters(
        rows=draw(st.integers(1, 5)),
        columns=draw(st.integers(1, 9)),
        sum_bits=draw(st.integers(24, 64)),
        count_bits=draw(st.integers(8, 64)),
        salt=draw(WORDS),
    )


@st.composite
def counter_vector_parameters(draw):
    count_bits = draw(st.sampled_from([0, 8, 64]))
    return CounterVectorParameters(
        counters=draw(st.integers(1, 20)),
        per_flow=draw(st.integers(1, 9)),
        bits=draw(st.integers(56, 64)),
        count_bits=count_bits,
        digest_bits=draw(st.sampled_from([0, 8, 16])) if count_bits else 0,
        shares=draw(st.sampled_from([(1.0,), (0.5, 0.5), (0.75, 0.125, 0.125)])),
        origin_ns=draw(st.sampled_from([0, 1_700_000_000_000_000_000])),
        resolution_ns=draw(st.sampled_from([1, 1000])),
        max_delay_ns=10**9,
        salt=draw(WORDS),
    )


@st.composite
def bucket_array_parameters(draw, spreadings=SPREADINGS):
    signed = draw(st.booleans())
    return BucketArrayParameters(
        buckets=draw(st.integers(1, 20)),
        per_instance=draw(st.integers(1, 9)),
        bits=draw(st.integers(20, 64)),
        count_bits=draw(st.sampled_from([0, 8, 64])),
        signed=signed,
        wrap=signed and draw(st.booleans()),
        spreading=draw(st.sampled_from(spreadings)),
        salt=draw(WORDS),
    )
