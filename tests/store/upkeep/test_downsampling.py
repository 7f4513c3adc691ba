"""Down-sampling: fewer epochs, the same answers about ranges of whole steps, and nothing counted twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import select
from test_epochs import PARAMETERS, undecodable

from sojourn.core.errors import UsageError
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.epochs.wire import EncodedEpoch, encode, encoded
from sojourn.estimation.buckets.queries import RangeQuery
from sojourn.estimation.buckets.questions import Question
from sojourn.server.queries.answering import Work, answer_question
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.database import EPOCHS
from sojourn.store.epochs import EpochStore, StreamRecord, open_store
from sojourn.store.upkeep.downsampling import MergeStep, merge_some
from sojourn.store.upkeep.partitions import prepare_partitions

MINUTE, HOUR, DAY = 60 * 10**9, 3600 * 10**9, 86_400 * 10**9
BEGIN = 20_000 * DAY
HOURLY = MergeStep(DAY, HOUR)
SALTS = 4
DISK = StreamRecord("n", "disk", "disk_io", "operations", "process", "increments")


@pytest.fixture
def store(place: str) -> Iterator[EpochStore]:
    opened = open_store(place)
    opened.announce(DISK)
    yield opened
    opened.close()


def minute(i: int, *, stream: str = "disk", length_ns: int = MINUTE, salts: int = SALTS) -> Epoch:
    """The epoch of a minute, with what two processes did in it; the salt goes round."""
    parameters = BucketArrayParameters(buckets=16, per_instance=2, bits=12, salt=i % salts)
    sketch = BucketArray(parameters)
    keys = ProcessKey("dd", 7), ProcessKey("sh", i % 5)
    for k, key in enumerate(keys):
        sketch.record(key_id(key), 3 + (i * (k + 2)) % 40, BEGIN + i * length_ns + 10**9)
        sketch.record(key_id(key), 2, BEGIN + (i + 1) * length_ns - 10**9)
    return Epoch("n", stream, i, sketch, keys)


def filled(store: EpochStore, numbers: range) -> None:
    for start in range(numbers.start, numbers.stop, 50):
        some = [minute(i) for i in range(start, min(start + 50, numbers.stop))]
        store.add(some, now_ns=BEGIN + (start + 50) * MINUTE)


def merged(store: EpochStore, step: MergeStep, now_ns: int) -> int:
    together = 0
    while (found := merge_some(store, step, now_ns))[0]:
        together += found[1]
    return together


def answers(store: EpochStore, from_ns: int, to_ns: int, *, current=(), **how) -> list[tuple]:
    """Sums of each instance and of all, by both methods, as a query worker finds them."""
    found = []
    for method, instance in (("joint", "*"), ("literal", "dd[7]"), ("joint", None)):
        asked = RangeQuery(from_ns=from_ns, to_ns=to_ns, stat="sum", method=method, **how)
        work = Work(
            question=Question(range=asked, instance=instance),
            streams=(DISK,),
            current={("n", "disk"): list(current)},
            until_ns=2**62,
            most_bytes=1 << 26,
        )
        estimates = [one.range.answer for one in answer_question(store.engine.url, work)]
        found += [(one.value, one.low, one.high) for one in estimates]
    return found


def rows(store: EpochStore) -> list[tuple[int, int]]:
    with store.transaction() as connection:
        found = connection.execute(select(EPOCHS.c.sequence, EPOCHS.c.merged).order_by(EPOCHS.c.sequence))
        return [tuple(row) for row in found]


def test_answers_about_whole_steps_are_the_same_from_fewer_epochs(store: EpochStore) -> None:
    filled(store, range(180))
    ranges = [(BEGIN, BEGIN + HOUR - 1), (BEGIN + HOUR, BEGIN + 3 * HOUR - 1), (0, 2**62)]
    before = [answers(store, *span) for span in ranges]
    assert merged(store, HOURLY, BEGIN + 2 * DAY) == 180 - 3 * SALTS
    assert [answers(store, *span) for span in ranges] == before
    assert [count for _, count in rows(store)] == [15] * 12
    assert merged(store, MergeStep(DAY, DAY), BEGIN + 2 * DAY) == 2 * SALTS
    assert answers(store, 0, 2**62) == before[2]
    assert [frame["merged"] for frame in store.frames("n", "disk", limit=9)] == [45] * SALTS


def test_what_is_cut_by_a_step_shows_what_it_covers(store: EpochStore) -> None:
    filled(store, range(60))
    merged(store, HOURLY, BEGIN + 2 * DAY)
    asked = RangeQuery(from_ns=BEGIN + 10 * MINUTE, to_ns=BEGIN + 20 * MINUTE, stat="sum")
    work = Work(question=Question(range=asked), streams=(DISK,), until_ns=2**62, most_bytes=1 << 26)
    (answer,) = answer_question(store.engine.url, work)
    ((first, last),) = answer.range.covered
    assert first <= BEGIN + 4 * MINUTE
    assert last >= BEGIN + 56 * MINUTE


def test_epochs_across_the_border_of_steps_stay_as_they_are(store: EpochStore) -> None:
    store.add([minute(i, length_ns=25 * MINUTE, salts=1) for i in range(12)], now_ns=BEGIN + 6 * HOUR)
    assert merged(store, HOURLY, BEGIN + 2 * DAY) == 3, "of each hour those that lie in it"
    # Epochs of 25 minutes: those across 60, 120, 180 and 240, and those that are alone in their hour.
    assert [number for number, count in rows(store) if count == 1] == [2, 3, 4, 7, 8, 9]


def test_what_is_not_old_waits_and_what_comes_late_is_merged_into_what_is_there(store: EpochStore) -> None:
    store.add([minute(i) for i in (0, 4)], now_ns=BEGIN + 10 * MINUTE)
    assert merged(store, HOURLY, BEGIN + DAY) == 0
    assert merged(store, HOURLY, BEGIN + DAY + 11 * MINUTE) == 1
    store.add([minute(i) for i in (8, 12)], now_ns=BEGIN + 2 * DAY)
    assert merged(store, HOURLY, BEGIN + 2 * DAY + HOUR) == 0, "they came an hour ago"
    assert merged(store, HOURLY, BEGIN + 3 * DAY + HOUR) == 2
    assert rows(store) == [(12, 4)]


def test_an_epoch_that_is_sent_again_after_it_was_merged_is_not_counted_twice(store: EpochStore) -> None:
    filled(store, range(60))
    before = answers(store, 0, 2**62)
    merged(store, HOURLY, BEGIN + 2 * DAY)
    assert store.add([minute(i) for i in range(61)]) == ["duplicate"] * 60 + ["stored"]
    after = answers(store, 0, BEGIN + HOUR - 1)
    assert after == before
    # Nor one that its node still has, because no answer reached it.
    assert answers(store, 0, BEGIN + HOUR - 1, current=[encode(minute(i)) for i in (3, 59)]) == before


def test_what_cannot_be_merged_is_left_alone(store: EpochStore) -> None:
    sketch = minute(0).sketch
    cut = [Epoch("n", "point:a", i, minute(i, salts=1).sketch, (), Cut(begins=i, ends=i + 1)) for i in range(3)]
    router = [minute(i, stream="router:a:b:dscp0:60000000000", salts=1) for i in range(3)]
    other = [Epoch("n", "disk", 1, BucketArray(PARAMETERS)), Epoch("n", "disk", 2, sketch, None)]
    store.add([*cut, *router, *other], now_ns=BEGIN)
    store.add_encoded([encoded(undecodable(i)) for i in (7, 8)], now_ns=BEGIN)
    before = store.totals()["epochs"]
    assert merged(store, HOURLY, BEGIN + 2 * DAY) == 0
    assert store.totals()["epochs"] == before


def test_counters_that_are_full_are_widened_and_sums_stay_exact(store: EpochStore) -> None:
    parameters = BucketArrayParameters(buckets=4, per_instance=1, bits=8)

    def full(i: int) -> Epoch:
        sketch = BucketArray(parameters)
        sketch.record(1, 250, BEGIN + i * MINUTE)
        return Epoch("n", "disk", i, sketch, ())

    store.add([full(i) for i in range(30)], now_ns=BEGIN)
    assert merged(store, HOURLY, BEGIN + 2 * DAY) == 29
    (one,) = store.epochs("n", "disk", 0, 2**62)
    assert (int(one.sketch.column("sum").sum()), one.recorded) == (30 * 250, 30)


def test_two_units_that_merge_at_once_lose_nothing(place: str) -> None:
    stores = [open_store(place) for _ in range(2)]
    stores[0].announce(DISK)
    with stores[0].transaction(writes=True) as connection:
        prepare_partitions(connection, BEGIN)
    filled(stores[0], range(240))
    before = answers(stores[0], 0, 2**62)
    failures: list[BaseException] = []

    def merge(store: EpochStore) -> None:
        try:
            merged(store, HOURLY, BEGIN + 2 * DAY)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=merge, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert answers(stores[0], 0, 2**62) == before
    assert sum(count for _, count in rows(stores[0])) == 240
    assert len(rows(stores[0])) == 4 * SALTS
    for store in stores:
        store.close()


def test_moved_epochs_are_merged_where_they_count(store: EpochStore) -> None:
    def ahead(i: int) -> EncodedEpoch:
        sketch = BucketArray(PARAMETERS)
        sketch.record(1, 2, BEGIN + 300 * DAY + i * MINUTE)
        return EncodedEpoch.of(Epoch("n", "disk", i, sketch, ()))

    store.add_encoded([ahead(0)], now_ns=BEGIN + MINUTE)
    store.add_encoded([ahead(1)], now_ns=BEGIN + 2 * MINUTE)
    assert merged(store, HOURLY, BEGIN + 2 * DAY) == 1
    (one,) = store.epochs("n", "disk", BEGIN, BEGIN + HOUR)
    assert (one.first_ns, one.last_ns, one.recorded) == (BEGIN + MINUTE, BEGIN + 2 * MINUTE, 2)


@pytest.mark.parametrize("text", ["1d", "1h:1d", "1d:1ms", "1d:", ":1h", "x:1h"])
def test_a_step_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        MergeStep.parse(text)
