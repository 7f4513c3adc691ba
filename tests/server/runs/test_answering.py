"""Epochs of runs as the worker reads them: those of following runs together, within bounds, each as it was stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.segments.fleet.fleet_world import SECOND, record

from sojourn.core.errors import UsageError
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.estimation.posterior.history import FEWEST_FLOWS
from sojourn.lab.two_point import make_two_point_world
from sojourn.segments.fleet.markers import SILENCE_NS
from sojourn.segments.fleet.runs import PlacedEpoch
from sojourn.segments.fleet.stored import read_history
from sojourn.segments.plan import plan_point
from sojourn.server.runs import answering
from sojourn.server.runs.answering import Reader, answer_pairs
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.runs import Pair, RunStore

NODE, STREAM = "n", "s"
PARAMETERS = LdaParameters(rows=8, shares=(1.0,))


class CountingStore:
    """A store that notes which numbers were asked for together."""

    def __init__(self, store: EpochStore) -> None:
        self.store, self.asked = store, list[list[int]]()

    def numbered(self, node: str, stream: str, sequences: Sequence[int], **how: object) -> list[Epoch]:
        self.asked.append(list(sequences))
        return self.store.numbered(node, stream, sequences, **how)  # type: ignore[arg-type]


def stored(folder: Path, count: int, *, apart_ns: int = 2 * SILENCE_NS) -> tuple[CountingStore, list[PlacedEpoch]]:
    cuts = [Cut(begins=n, ends=n + 1, continues=n > 0) for n in range(count)]
    epochs = []
    for number, cut in enumerate(cuts):
        sketch = Lda(PARAMETERS)
        sketch.record(1, 10**9 + number * apart_ns, 100)
        epochs.append(Epoch(NODE, STREAM, number, sketch.snapshot(), None, cut))
    store = open_store(folder)
    store.add(epochs)
    placed = [PlacedEpoch(e.sequence, e.cut, e.first_ns, e.last_ns, e.recorded) for e in epochs if e.cut is not None]
    return CountingStore(store), placed


@pytest.mark.parametrize(("room", "reads"), [(1, 6), (3, 3), (100, 2)])
def test_epochs_of_following_runs_are_read_together_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, reads: int
) -> None:
    monkeypatch.setattr(answering, "AHEAD_BYTES", room * PARAMETERS.decoded_bytes)
    store, placed = stored(tmp_path, 6)
    reader = Reader(store, NODE, STREAM, 1 << 20)  # type: ignore[arg-type]
    reader.expect(placed)
    for one in placed:
        (epoch,) = reader.epochs([one])
        assert epoch == store.store.numbered(NODE, STREAM, [one.sequence])[0]
        assert [e.sequence for e in reader.before(one)] == [one.sequence - 1] * (one.sequence > 0)
    assert len(store.asked) == reads
    assert sorted(number for some in store.asked for number in some) == [one.sequence for one in placed]


def test_of_short_epochs_as_many_are_looked_at_as_packets_can_be_late(tmp_path: Path) -> None:
    store, placed = stored(tmp_path, 6, apart_ns=SILENCE_NS * 2 // 5)
    reader = Reader(store, NODE, STREAM, 1 << 20)  # type: ignore[arg-type]
    assert [e.sequence for e in reader.before(placed[5])] == [2, 3, 4]
    assert [e.sequence for e in reader.before(placed[1])] == [0]
    assert reader.before(placed[0]) == []


def test_an_epoch_that_is_gone_ends_its_own_run_alone(tmp_path: Path) -> None:
    store, placed = stored(tmp_path, 3)
    reader = Reader(store, NODE, STREAM, 1 << 20)  # type: ignore[arg-type]
    store.store.set_aside(2, "damaged")
    reader.expect(placed)
    assert len(reader.epochs(placed[:1])) == 1
    with pytest.raises(UsageError, match="cannot be decoded, or are gone"):
        reader.epochs(placed[1:2])
    assert len(reader.epochs(placed[2:])) == 1


def test_runs_that_are_answered_together_tell_the_same_packets_and_losses(tmp_path: Path) -> None:
    world = make_two_point_world(seed=3, flows=20, packets=20_000, duration_ns=40 * SECOND, load=0.9)
    plan = plan_point(32_000, flows=100, loss=0.01)
    store = open_store(tmp_path)
    for batch, node in ((world.sender, "a"), (world.receiver, "b")):
        store.add(record(batch, plan, world, node=node))
    stream = "point:eth0:out:g1"
    pairs = RunStore(store).pairs([Pair(from_node="a", from_stream=stream, to_node="b", to_stream=stream)])
    rows = []
    for together in (1, 3):
        within = {"most_runs": 64, "most_bytes": 1 << 28, "together": together}
        (found,) = answer_pairs(store.engine.url, pairs, **within)
        assert found.is_whole
        rows.append(found.runs)
    one_by_one, joined = rows
    assert len(one_by_one) >= 6
    assert len(joined) == -(-len(one_by_one) // 3)
    assert all(row.reason is None for row in (*one_by_one, *joined))
    for name in ("sent", "received"):
        assert sum(getattr(row, name) for row in joined) == sum(getattr(row, name) for row in one_by_one)
    assert [row.follows for row in joined[1:]] == [True] * (len(joined) - 1)
    store.close()


def test_a_run_is_answered_alike_after_runs_that_were_stored_or_answered_just_before(tmp_path: Path) -> None:
    world = make_two_point_world(seed=3, flows=120, packets=20_000, duration_ns=40 * SECOND, load=0.9)
    plan = plan_point(8_000, flows=120, loss=0.01)
    store = open_store(tmp_path)
    for batch, node in ((world.sender, "a"), (world.receiver, "b")):
        store.add(record(batch, plan, world, node=node))
    stream = "point:eth0:out:g1"
    runs, pair = RunStore(store), Pair(from_node="a", from_stream=stream, to_node="b", to_stream=stream)
    within = {"most_bytes": 1 << 28}
    (at_once,) = answer_pairs(store.engine.url, runs.pairs([pair]), most_runs=64, **within)
    one_by_one = []
    while found := answer_pairs(store.engine.url, runs.pairs([pair]), most_runs=1, **within):
        runs.add_all(found, now_ns=0)
        one_by_one += found[0].runs
    assert tuple(one_by_one) == at_once.runs
    sizes = [len(read_history(row.data).flow_id) for row in at_once.runs]
    assert sum(size >= FEWEST_FLOWS for size in sizes) >= 5  # runs that hand on a history
    store.close()
