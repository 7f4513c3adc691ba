"""Answers from the store: what a query worker does, without a word of HTTP.

Epochs are read one after the other and added up where they can be, so that memory does not grow with a range. What
cannot be added up is bounded (`Work.most_bytes`), and so is each epoch, before it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import URL

from sojourn.core.errors import WireError
from sojourn.epochs.wire import EncodedEpoch, encoded
from sojourn.estimation.buckets.adding import BucketEpoch, read_buckets
from sojourn.estimation.buckets.queries import too_large
from sojourn.estimation.buckets.questions import Found, Question, answer_streams
from sojourn.mplane.measurements import SegmentMeasurement
from sojourn.store.epochs import EpochStore, StreamRecord, read_store
from sojourn.store.measurements import MeasurementStore

MOST_LEFT_OUT = 5


@dataclass(frozen=True, kw_only=True)
class Work:
    """A question with all that a worker needs to answer it from the store.

    ``current`` holds the epochs, as bytes, that nodes had not sent when they were asked, by node and stream; nodes that
    did not answer are in ``silent``. ``until_ns`` is when they were asked. Of what is stored, ``numbers`` may say which
    epochs alone count: where a clock was set back, others are of the same time.
    """

    question: Question
    streams: tuple[StreamRecord, ...]
    current: Mapping[tuple[str, str], Sequence[bytes]] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    until_ns: int
    most_bytes: int
    numbers: tuple[int, int] | None = None


class _StreamEpochs:
    """A stream's epochs in the range, stored ones and current ones; what is in both counts once. Read them once.

    One that cannot be decoded is left out: stored ones are set aside, with `faults` for the others.
    """

    def __init__(self, store: EpochStore, stream: StreamRecord, work: Work) -> None:
        self._store, self._name, self._work = store, stream.name, work
        self.node, self.unit = stream.node, stream.unit
        self.faults: list[str] = []
        self.live = stream.node not in work.silent and work.question.range.to_ns >= work.until_ns

    def __iter__(self) -> Iterator[BucketEpoch]:
        asked, place = self._work.question.range, (self.node, self._name)
        current = [encoded(data) for data in self._work.current.get(place, ())]
        # Before the stored ones are read: one that was merged or moved is not found under its own number or time.
        known = self._store.stored_among(*place, (header.sequence for header in current))
        numbers = self._work.numbers
        for epoch in self._store.each_epoch(*place, asked.from_ns, asked.to_ns, self._read, numbers=numbers):
            known.add(epoch.header.sequence)
            yield epoch
        for header in current:
            if header.sequence in known or not header.overlaps(asked.from_ns, asked.to_ns):
                continue
            try:
                epoch = self._read(header)
            except WireError as error:
                self.faults.append(f"an epoch of {'/'.join(place)} cannot be decoded and is left out: {error}")
                continue
            self.live = True
            yield epoch

    def _read(self, epoch: EncodedEpoch) -> BucketEpoch:
        """The epoch's buckets; it is refused before they are unpacked if they are too many."""
        if epoch.decoded_bytes > self._work.most_bytes:
            what = f"an epoch ({epoch.node}/{epoch.stream}, number {epoch.sequence}) of {epoch.decoded_bytes} bytes"
            raise too_large(what, self._work.most_bytes)
        return read_buckets(epoch)


def answer_question(url: URL, work: Work) -> list[Found]:
    """One answer, or one for each instance or group, from the store at a URL."""
    store, asked = read_store(url), work.question.range
    places = [(stream.node, stream.name) for stream in work.streams]
    store.check_range(places, asked.from_ns, asked.to_ns)
    streams = [_StreamEpochs(store, stream, work) for stream in work.streams]
    found = answer_streams(streams, work.question, most_bytes=work.most_bytes)
    left_out = store.set_aside_in(places, asked.from_ns, asked.to_ns)
    left_out += [fault for stream in streams for fault in stream.faults]
    moved = store.moved_in(places, asked.from_ns, asked.to_ns)
    if len(left_out) > MOST_LEFT_OUT:
        left_out[MOST_LEFT_OUT:] = [f"and {len(left_out) - MOST_LEFT_OUT} more epochs"]
    return [replace(one, notes=(*one.notes, *left_out, *moved)) for one in found]


def measured_between(
    url: URL, from_ns: int, to_ns: int, node: str | None, segment: str | None, most_bytes: int
) -> list[SegmentMeasurement]:
    """What was measured of segments, from the store at a URL."""
    return MeasurementStore(read_store(url)).between(from_ns, to_ns, node=node, segment=segment, most_bytes=most_bytes)


def known_keys(url: URL, node: str | None, stream: str | None, limit: int) -> list[tuple[int, str]]:
    """Ids and texts of the keys seen, from the store at a URL."""
    return read_store(url).keys(node=node, stream=stream, limit=limit)
