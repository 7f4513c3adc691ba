"""A source under pseudonyms: ids, keys and packets, in columns and plain, as long as instances come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from odd_captures import two_points, write
from sojourn.core.hashing import MASK
from sojourn.core.keys import Key, ProcessKey, key_id
from sojourn.core.measurements import Measurements
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.sources.pseudonym_columns import ColumnIds, _hash_column
from sojourn.sources.pseudonymous import PlainIds, PseudonymousSource
from sojourn.sources.registry import new_source
from sojourn.sources.source import InstancePatterns, Metric, ReadingSource, SelectedInstances, SourceBatch

PSEUDONYMS = Pseudonyms(bytes(range(32)))


def siphash(key: bytes, data: int) -> int:
    """SipHash-2-4 of eight bytes, word by word as its paper has it."""

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & MASK

    first, second = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    v = [
        first ^ 0x736F6D6570736575, second ^ 0x646F72616E646F6D, first ^ 0x6C7967656E657261, second ^ 0x7465646279746573
    ]  # fmt: skip

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0], v[2] = v[0] + v[1] & MASK, v[2] + v[3] & MASK
            v[1], v[3] = rotated(v[1], 13) ^ v[0], rotated(v[3], 16) ^ v[2]
            v[0] = rotated(v[0], 32)
            v[2], v[0] = v[2] + v[1] & MASK, v[0] + v[3] & MASK
            v[1], v[3] = rotated(v[1], 17) ^ v[2], rotated(v[3], 21) ^ v[0]
            v[2] = rotated(v[2], 32)

    for word in (data, 8 << 56):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def hashed(key: bytes, numbers: list[int]) -> list[int]:
    first, second = (np.uint64(int.from_bytes(key[at : at + 8], "little")) for at in (0, 8))
    column = np.array(numbers, np.uint64)
    found = np.empty_like(column)
    _hash_column(first, second, column, found)
    return found.tolist()


def test_packets_are_hashed_by_siphash() -> None:
    key, message = bytes(range(16)), int.from_bytes(bytes(range(8)), "little")
    # Of the table of test vectors that its authors publish, the one of eight bytes.
    published = int.from_bytes(bytes.fromhex("6224939a79f5f593"), "little")
    assert hashed(key, [message]) == [published] == [siphash(key, message)]
    numbers = [0, 1, MASK, *(n * 0x9E3779B97F4A7C15 & MASK for n in range(50))]
    other = bytes(range(7, 23))
    assert hashed(other, numbers) == [siphash(other, number) for number in numbers]


@pytest.fixture
def capture(tmp_path: Path) -> str:
    return write(tmp_path / "point.pcap", two_points()[0])


def polled(source: Any) -> list[SourceBatch[Any]]:
    with source:
        found = []
        while not source.is_ended:
            found.append(source.poll(2**62))
        return found


@pytest.mark.parametrize("metric", ["packets", "flow_packets", "flow_bytes", "rtt"])
def test_a_capture_gives_the_same_under_other_names(capture: str, metric: str) -> None:
    clear, hidden = (polled(source) for source in (new_source(metric, capture=capture), _hidden(metric, capture)))
    assert len(clear) == len(hidden)
    for one, other in zip(clear, hidden, strict=True):
        assert other.keys == tuple(map(PSEUDONYMS.key, one.keys))
        named = {key_id(key): key_id(PSEUDONYMS.key(key)) for found in clear for key in found.keys}
        own, its = one.batch.columns(), other.batch.columns()
        column = "flow_id" if metric == "packets" else "instance_id"
        assert its[column].tolist() == [named[number] for number in own[column].tolist()]
        if metric == "packets":
            key = b"".join(word.to_bytes(8, "little") for word in PSEUDONYMS.hash_key("packet"))
            assert its["packet_id"].tolist() == hashed(key, own["packet_id"].tolist())
        same = set(own) - {column, "packet_id" if metric == "packets" else column}
        assert all((its[name] == own[name]).all() for name in same)


def _hidden(metric: str, capture: str) -> PseudonymousSource[Any]:
    return PseudonymousSource(new_source(metric, capture=capture), PSEUDONYMS)


def test_packets_of_flows_without_a_name_fit_no_key(capture: str) -> None:
    """A table of two flows has no room for all."""
    source = PseudonymousSource(new_source("packets", capture=capture, max_flows=2), PSEUDONYMS)
    found = polled(source)
    clear = polled(new_source("packets", capture=capture))
    ids = {number for one in found for number in one.batch.flow_id.tolist()}
    assert not ids & {number for one in clear for number in one.batch.flow_id.tolist()}
    assert len(ids) == len({number for one in clear for number in one.batch.flow_id.tolist()}), "still told apart"


class Counting(ReadingSource):
    """Three processes."""

    metric: ClassVar[Metric] = Metric("counting", "operations", "process", "increments")

    def read(self, now_ns: int) -> dict[Key, int]:
        return {ProcessKey(name, 7): now_ns % 10 + at for at, name in enumerate(("a", "b", "c"))}


def test_plain_measurements_go_by_pseudonyms_from_poll_to_poll() -> None:
    source = PseudonymousSource(Counting(), PSEUDONYMS)
    assert not source.has_columns
    with source:
        first, second = source.poll(5), source.poll(6)
    assert isinstance(first.rows, Measurements)
    keys = [PSEUDONYMS.key(ProcessKey(name, 7)) for name in ("a", "b", "c")]
    assert (first.keys, second.keys) == (tuple(keys), ())
    assert list(first.rows.instance_id) == list(second.measurements.instance_id) == [key_id(key) for key in keys]
    assert (list(first.rows.value), list(second.measurements.value)) == ([5, 6, 7], [6, 7, 8])


@pytest.mark.parametrize("is_outside", [True, False])
def test_patterns_of_the_node_are_clear_and_those_from_outside_are_not(is_outside: bool) -> None:
    """One wraps the other in one order or the other."""
    clear, hidden = InstancePatterns(["b[*]"]), InstancePatterns([f"{PSEUDONYMS.process_name('b')}[*]"])
    source: Any
    if is_outside:
        source = SelectedInstances(PseudonymousSource(Counting(), PSEUDONYMS), hidden)
    else:
        source = PseudonymousSource(SelectedInstances(Counting(), clear), PSEUDONYMS)
    with source:
        found = source.poll(5)
    assert [str(key) for key in found.keys] == [f"{PSEUDONYMS.process_name('b')}[7]"]
    assert list(found.measurements.value) == [6]
    assert source.memory_bytes > 0


def plain_ids(most: int) -> tuple[Any, Any, Any]:
    ids = PlainIds(PSEUDONYMS, most)
    return ids.learn, ids.of, lambda: len(ids._known) + len(ids._earlier)


def column_ids(most: int) -> tuple[Any, Any, Any]:
    ids = ColumnIds(PSEUDONYMS, most)
    return (
        ids.learn,
        lambda number: int(ids._ids(np.array([number], np.uint64))[0]),
        lambda: ids._now.count + ids._earlier.count,
    )


@pytest.mark.parametrize("made", [plain_ids, column_ids])
def test_who_is_measured_is_not_forgotten_and_memory_is_bounded(made: Any) -> None:
    """One instance that is measured now and again, through ten thousand that come once."""
    learn, of, size = made(100)
    learn([(1, 1001), (2, 1002)])
    for number in range(10, 10_010):
        learn([(number, number + 1000)])
        assert of(number) == number + 1000
        if number % 50 == 0:
            assert of(1) == 1001
    assert size() <= 2 * 100
    assert of(2) != 1002, "it was forgotten"
    assert of(2) == of(2) != 2


def test_a_column_of_many_ids_grows_the_table() -> None:
    ids = ColumnIds(PSEUDONYMS, 1 << 16)
    known = np.arange(1, 20_001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    ids.learn([(number, number ^ 1) for number in known.tolist()])
    ids.learn([(number, number ^ 1) for number in known[:100].tolist()])
    drawn = np.random.default_rng(1).choice(known, 50_000)
    assert (ids._ids(drawn) == drawn ^ np.uint64(1)).all()
    assert ids._now.count == 20_000
