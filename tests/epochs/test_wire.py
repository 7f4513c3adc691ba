"""The wire format: exact round trips, small, checked before trusted, and never a crash."""

from __future__ import annotations

import io
import tracemalloc

import cbor2
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from sojourn.core.errors import ParameterError, WireError
from sojourn.core.hashing import hash_bytes
from sojourn.core.keys import ProcessKey, parse_key
from sojourn.epochs.epoch import Epoch, merge_epochs
from sojourn.epochs.wire import (
    MAX_EPOCH_BYTES,
    EncodedEpoch,
    decode,
    encode,
    encoded,
    encoded_sequence,
    read_epochs,
)
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.sds import SdsParameters
from sojourn.sketches.sketch import new_sketch

PACKET_PARAMETERS = st.one_of(
    own.lda_parameters(), own.lds_parameters(), own.counter_vector_parameters(), own.sample_parameters()
)
MEASUREMENT_PARAMETERS = st.one_of(own.sds_parameters(), own.bucket_array_parameters())
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=20)
KEYS = st.one_of(st.none(), st.lists(st.builds(ProcessKey, NAMES, st.integers(0, 99)), max_size=4).map(tuple))


@st.composite
def epochs(draw):
    if draw(st.booleans()):
        sketch = new_sketch(draw(PACKET_PARAMETERS))
        sketch.record_batch(own.packet_batch(draw(own.packets(10))))
    else:
        sketch = new_sketch(draw(MEASUREMENT_PARAMETERS))
        sketch.record_batch(own.measurement_batch(draw(own.measurements(10))))
    return Epoch(draw(NAMES), draw(NAMES), draw(st.integers(0, 2**63 - 1)), sketch, draw(KEYS))


def small_epoch(**changes) -> Epoch:
    parameters = BucketArrayParameters(buckets=20, per_instance=5, bits=16, spreading="random", salt=2**63 + 1)
    sketch = BucketArray(parameters)
    for i in range(1000):
        sketch.record(i % 10, 3, 1_700_000_000_000_000_000 + i * 10**9)
    fields = {"node": "raspberry-pi-17", "stream": "disk_io", "sequence": 12345, "sketch": sketch}
    return Epoch(**{**fields, **changes})


def rebuilt(change) -> bytes:
    """A small epoch's bytes with its body's items changed, the check made good again."""
    _, body, _ = cbor2.loads(encode(small_epoch()))
    items = cbor2.loads(body)
    change(items)
    body = cbor2.dumps(items)
    return cbor2.dumps([1, body, xxhash.xxh64_intdigest(body) & 0xFFFFFFFF])


@given(epochs())
def test_decoding_gives_back_the_epoch(epoch: Epoch) -> None:
    again = decode(encode(epoch))
    assert again == epoch
    assert (again.first_ns, again.last_ns) == (epoch.first_ns, epoch.last_ns)
    assert encode(again) == encode(epoch)


@pytest.mark.parametrize("bits", range(1, 65))
def test_every_bit_width_round_trips_at_its_extremes(bits: int) -> None:
    top = (1 << min(bits, 63)) - 1
    unsigned = BucketArray(BucketArrayParameters(buckets=7, per_instance=1, bits=bits, count_bits=bits))
    signed = BucketArray(BucketArrayParameters(buckets=7, per_instance=1, bits=bits, signed=True))
    unsigned.arrays[0][:] = [[0, top], [top, 0], [1, 1], [top >> 1, top], [top, top], [0, 1], [1, 0]]
    signed.arrays[0][:, 0] = [-(1 << (bits - 1)), (1 << (bits - 1)) - 1, 0, -1, 0, -1, 0]
    sketches = [unsigned, signed]
    if bits > 1:
        wide = LdsParameters(
            rows=1, columns=3, sum_bits=bits, count_bits=bits, digest_bits=bits, byte_bits=bits, max_delay_ns=1
        )
        kinds = [
            LdaParameters(rows=3, sum_bits=bits, count_bits=bits, digest_bits=bits, max_delay_ns=1),
            wide,
            SdsParameters(rows=1, columns=3, sum_bits=bits, count_bits=bits),
            CounterVectorParameters(counters=3, per_flow=1, bits=bits, count_bits=bits, max_delay_ns=1),
        ]
        for kind in kinds if bits > 2 else kinds[2:3]:
            sketch = new_sketch(kind)
            for i, field in enumerate(kind.tables()[0].fields):
                sketch.arrays[0][:, i] = [field.highest, field.lowest, field.highest // 3]
            sketches.append(sketch)
    for sketch in sketches:
        sketch.recorded, sketch.first_ns, sketch.last_ns = 5, -3, 9
        epoch = Epoch("n", "s", 0, sketch)
        assert decode(encode(epoch)) == epoch


def test_a_20_bucket_16_bit_epoch_stays_under_160_bytes() -> None:
    assert len(encode(small_epoch())) < 160


def test_the_format_of_version_1_does_not_change() -> None:
    parameters = BucketArrayParameters(buckets=4, per_instance=2, bits=5, spreading="sequence", salt=9)
    sketch = BucketArray(parameters)
    sketch.record(1, 3, 1000, 0)
    sketch.record(2, 7, 5000, 1)
    epoch = Epoch("n", "s", 2, sketch, (parse_key("p[7]"),))
    assert encode(epoch).hex() == (
        "83015842896c6275636b65745f6172726179a5616e04616d0261620561"
        "6a6873657175656e63656473616c7409616e61730282"
        "1903e8190fa00243070c00814603000000077"
        "01ae4a3e391"
    )
    assert cbor2.loads(encode(epoch))[2] == hash_bytes(cbor2.loads(encode(epoch))[1]) % 2**32


@given(epochs(), st.data())
def test_truncated_epochs_are_refused(epoch: Epoch, data) -> None:
    encoded = encode(epoch)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(WireError):
        decode(encoded[:cut])


@given(epochs(), st.data())
def test_flipped_bits_are_noticed(epoch: Epoch, data) -> None:
    encoded = bytearray(encode(epoch))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        decode(bytes(encoded))


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=80).map(lambda b: b"\x83\x01" + b)))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


CBOR_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=60)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)


@given(st.integers(0, 8), CBOR_VALUES)
def test_any_other_value_in_any_field_decodes_or_is_a_wire_error(position: int, value) -> None:
    def change(items: list[object]) -> None:
        items[position] = value

    try:
        epoch = decode(rebuilt(change))
    except WireError:
        return
    assert decode(encode(epoch)) == epoch


@pytest.mark.parametrize(
    ("position", "value", "where"),
    [
        (0, "hyperloglog", "kind"),
        (0, 7, "kind"),
        (1, [], "parameters"),
        (1, {"n": 2**60, "m": 5}, "bucket_array parameters"),
        (1, {"n": 2**28, "m": 5}, "counters"),
        (1, {"n": 20, "m": 5, "x": 1}, "bucket_array parameters"),
        (2, "", "epoch"),
        (2, "a\x00b", "epoch"),
        (2, b"node", "node"),
        (3, "s" * 300, "epoch"),
        (4, -1, "sequence"),
        (4, 2**63, "sequence"),
        (5, [1], "frame"),
        (5, [0, -1], "span_ns"),
        (5, [2**63 - 1, 2**62], "span_ns"),
        (5, None, "frame"),
        (6, 1.5, "recorded"),
        (7, b"", "counters"),
        (7, b"\x00" * 41, "counters"),
        (8, [b"\xff"], "keys"),
        (8, [1], "keys"),
        (8, {}, "keys"),
    ],
)
def test_a_malformed_field_is_named(position: int, value: object, where: str) -> None:
    def change(items: list[object]) -> None:
        items[position] = value

    with pytest.raises(WireError) as caught:
        decode(rebuilt(change))
    assert caught.value.where == where


def test_unknown_versions_say_which_one_is_read() -> None:
    with pytest.raises(WireError, match=r"version: version 9 is unknown; this Sojourn reads versions 1, 2, 3"):
        decode(cbor2.dumps([9, b"", 0]))


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x9b\x00\x00\x00\x10\x00\x00\x00\x00",
        b"\x83\x01\x5b\x00\x00\x00\x10\x00\x00\x00\x00",
        b"\x81" * 100_000,
        b"\x83\x01\xc2\x5a\x00\x0f\x42\x40" + b"\xff" * 1_000_000,
        b"\x83\x01\x5f\x41a\xff\x00",
        b"\x83\x01\xd8\x23\x63(a)\x00",
    ],
    ids=["huge array", "huge string", "deep", "big number", "indefinite", "regular expression tag"],
)
def test_hostile_lengths_and_depths_cost_nothing(hostile: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(WireError):
        decode(hostile)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(hostile) + 1_000_000


def test_counters_are_not_allocated_before_their_size_is_right() -> None:
    def change(items: list[object]) -> None:
        items[1] = {"n": 2**28, "m": 5, "b": 64}

    data = rebuilt(change)
    tracemalloc.start()
    with pytest.raises(WireError, match="40 bytes of counters, the parameters call for 2147483648"):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_counters_of_few_bits_do_not_grow_beyond_the_bound() -> None:
    """2²⁶ counters of one bit are 8 MiB on the wire; in memory they would take several times 512 MiB."""

    def change(items: list[object]) -> None:
        items[1] = {"n": 2**26, "m": 5, "b": 1}
        items[7] = bytes(2**23)

    data = rebuilt(change)
    tracemalloc.start()
    with pytest.raises(WireError, match="counters: the counters take 536870912 bytes of memory"):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * len(data)


def test_an_oversized_epoch_is_refused_unread() -> None:
    with pytest.raises(WireError, match="exceed"):
        decode(bytes(MAX_EPOCH_BYTES + 1))


def test_bytes_after_an_epoch_are_refused() -> None:
    with pytest.raises(WireError, match="send one epoch at a time"):
        decode(encode(small_epoch()) + b"\x00")


@given(st.lists(epochs(), max_size=4))
def test_a_file_of_epochs_is_a_sequence(all_epochs: list[Epoch]) -> None:
    assert list(read_epochs(io.BytesIO(b"".join(map(encode, all_epochs))))) == all_epochs


def test_a_damaged_file_gives_what_precedes_the_damage_and_says_where() -> None:
    first = encode(small_epoch())
    file = io.BytesIO(first + encode(small_epoch(sequence=7))[:-10])
    reader = read_epochs(file)
    assert next(reader).sequence == 12345
    with pytest.raises(WireError, match=f"epoch at byte {len(first)}, epoch: the data ends early"):
        next(reader)


def test_an_epoch_is_immutable_and_keeps_its_own_counters() -> None:
    sketch = Lda(LdaParameters(rows=4))
    sketch.record(1, 100)
    epoch = Epoch("n", "s", 0, sketch)
    sketch.record(2, 200)
    assert epoch.recorded == 1
    with pytest.raises(ValueError, match="read-only"):
        epoch.sketch.arrays[0][0, 0] = 1


def test_epochs_of_equal_parameters_merge_and_overlap_by_time() -> None:
    sketches = []
    for packet_id, time_ns in ((1, 100), (2, 300)):
        sketch = Lda(LdaParameters(rows=4))
        sketch.record(packet_id, time_ns)
        sketches.append(sketch)
    all_epochs = [Epoch("n", "s", i, sketch) for i, sketch in enumerate(sketches)]
    assert merge_epochs(all_epochs) == sketches[0].merge(sketches[1])
    assert [epoch.overlaps(50, 150) for epoch in all_epochs] == [True, False]
    assert not Epoch("n", "s", 2, Lda(LdaParameters(rows=4))).overlaps(0, 10**18)


def test_bad_names_are_refused() -> None:
    for changes in ({"node": ""}, {"stream": "x" * 300}, {"node": "a\nb"}, {"sequence": -1}):
        with pytest.raises(ParameterError):
            small_epoch(**changes)


@given(epochs())
def test_what_an_epoch_takes_is_known_before_it_is_decoded(epoch: Epoch) -> None:
    data = encode(epoch)
    header = encoded(data)
    assert header.decoded_bytes == sum(array.nbytes for array in epoch.sketch.arrays)
    assert (header.node, header.stream, header.sequence) == (epoch.node, epoch.stream, epoch.sequence)
    assert (header.first_ns, header.last_ns, header.recorded) == (epoch.first_ns, epoch.last_ns, epoch.recorded)
    assert header.keys() == tuple(key.to_bytes() for key in epoch.keys or ())
    assert header.decode() == epoch
    assert header == EncodedEpoch.of(epoch)
    assert list(encoded_sequence(data + data)) == [header, header]


def test_looking_at_an_epoch_does_not_unpack_its_counters() -> None:
    sketch = new_sketch(BucketArrayParameters(buckets=1 << 20, per_instance=1, bits=1, count_bits=1))
    data = encode(Epoch("n", "s", 0, sketch))
    tracemalloc.start()
    try:
        header = encoded(data)
        looking = tracemalloc.get_traced_memory()[1]
        header.decode()
        decoding = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert looking < header.decoded_bytes / 8
    assert decoding < 2 * header.decoded_bytes


@pytest.mark.parametrize(("position", "value"), [(8, [b"\x09"]), (8, [3])], ids=str)
def test_counters_and_keys_travel_unseen_and_are_refused_when_they_are_decoded(position: int, value: object) -> None:
    data = rebuilt(lambda items: items.__setitem__(position, value))
    assert encoded(data).data is data
    with pytest.raises(WireError):
        encoded(data).decode()


def test_a_damaged_sequence_names_the_byte_of_the_epoch() -> None:
    data = encode(small_epoch())
    found = encoded_sequence(data + data[:-1])
    assert next(found).data == data
    with pytest.raises(WireError, match=f"epoch at byte {len(data)}, epoch: the data ends early"):
        next(found)
