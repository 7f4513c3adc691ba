"""Epochs of runs as the worker reads them: those of following runs together, within bounds, each as it was stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sojourn.core.errors import UsageError
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.segments.fleet.runs import PlacedEpoch
from sojourn.server.runs import answering
from sojourn.server.runs.answering import Reader
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.store.epochs import EpochStore, open_store

NODE, STREAM = "n", "s"
PARAMETERS = LdaParameters(rows=8, shares=(1.0,))


class CountingStore:
    """A store that notes which numbers were asked for together."""

    def __init__(self, store: EpochStore) -> None:
        self.store, self.asked = store, list[list[int]]()

    def numbered(self, node: str, stream: str, sequences: Sequence[int], **how: object) -> list[Epoch]:
        self.asked.append(list(sequences))
        return self.store.numbered(node, stream, sequences, **how)  # type: ignore[arg-type]


def stored(folder: Path, count: int) -> tuple[CountingStore, list[PlacedEpoch]]:
    cuts = [Cut(begins=n, ends=n + 1, continues=n > 0) for n in range(count)]
    epochs = []
    for number, cut in enumerate(cuts):
        sketch = Lda(PARAMETERS)
        sketch.record(1, 100 + number, 10**9 + number)
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


def test_an_epoch_that_is_gone_ends_its_own_run_alone(tmp_path: Path) -> None:
    store, placed = stored(tmp_path, 3)
    reader = Reader(store, NODE, STREAM, 1 << 20)  # type: ignore[arg-type]
    store.store.set_aside(2, "damaged")
    reader.expect(placed)
    assert len(reader.epochs(placed[:1])) == 1
    with pytest.raises(UsageError, match="cannot be decoded, or are gone"):
        reader.epochs(placed[1:2])
    assert len(reader.epochs(placed[2:])) == 1
