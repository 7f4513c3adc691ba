"""One stream of an agent: a source, the sketch of its current epoch, and the keys seen in it.

Epochs close when their time is over or their sketch is full. The salt goes round a few values, so that the same
instances collide differently from epoch to epoch, while epochs a round apart can still be merged. Each node has values
of its own: what several nodes measured of the same instances has independent errors, as those who add it up take them.
Open epochs can be asked for at any time (`snapshots`), which changes nothing.

Measurements are recorded by the node unit's own code, packets (and what else comes in columns) by kernels, which are
imported for them alone.

Nobody has to wait for a source: its calls run in a thread of its own. Guarantee: `open`, `take` and `close` of a
`WatchedSource` return after the time that the caller gives, whatever the source does: it may wait for a disk that does
not answer, or for ever. What it raises, of any kind, is raised to the caller. A source that was given up is closed as
soon as its call returns, if it ever does; `is_busy` tells that it has not.
Cost: a thread for each source, some 50 µs for each call.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sojourn.core.errors import SojournError, SourceError, UsageError
from sojourn.core.hashing import hash_bytes
from sojourn.epochs.encoded import EncodedEpoch
from sojourn.node.agent.configuration import DEFAULT_LIMITS, StreamConfiguration, checked_source, sketch_bytes
from sojourn.node.agent.metric_recorder import MetricRecorder
from sojourn.node.agent.sizing import Held, cost_text, resized
from sojourn.sketches.bucket_parameters import BucketArrayParameters
from sojourn.sketches.kinds import BUCKETS
from sojourn.sources.registry import AnySource, values_of
from sojourn.sources.source import SourceBatch

if TYPE_CHECKING:
    from sojourn.core.pseudonyms.mapping import Pseudonyms
    from sojourn.node.agent.column_recorder import ColumnRecorder
    from sojourn.segments.fleet.ledgers.packets import FlowPackets, PacketsQuestion
    from sojourn.sketches.ledgers.ledger import Ledger

# A first poll may compile for a while; one that takes longer never comes back.
SILENT_SECONDS = 60.0
# Opening compiles more than anything else.
OPENING_SECONDS = 120.0
_LOOK_SECONDS = 0.1
# Rounds of salts that nodes choose from; of the usual sixteen a salt then fits 16 bits.
ROUNDS = 4096


class WatchedSource:
    """A source of any metric behind a thread; used from one thread at a time."""

    def __init__(self, source: AnySource, *, name: str) -> None:
        self._source = source
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._polling: Future[Any] | None = None
        self._asked_at = 0.0
        self._is_late = False

    @property
    def is_busy(self) -> bool:
        """Whether the thread is still there."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def ignored(self) -> dict[str, int]:
        return self._source.ignored

    @property
    def warnings(self) -> list[str]:
        return self._source.warnings

    @property
    def missed(self) -> int:
        """Packets that passed since it was opened and that the kernel had no room for."""
        return self._source.missed

    def open(self, *, is_over: Callable[[], bool] = lambda: False, seconds: float = OPENING_SECONDS) -> None:
        """Open the source; gives it up after some seconds, or as soon as `is_over`."""
        self._thread = threading.Thread(target=self._work, name=f"source {self._name}", daemon=True)
        self._thread.start()
        opening = self._begin(self._open)
        deadline = time.monotonic() + seconds
        while not _is_done(opening, _LOOK_SECONDS):
            if is_over() or time.monotonic() > deadline:
                self.close(seconds=0.0)
                raise SourceError("its source could not be opened in time", where=f"stream {self._name}")
        try:
            self._result(opening)
        except BaseException:
            self._calls.put(None)
            raise

    def _open(self) -> None:
        try:
            self._source.open()
        except BaseException:
            self._source.close()
            raise

    def ask(self, now_ns: int) -> None:
        """Have the source polled, unless it is being polled already."""
        if self._polling is None:
            self._asked_at = time.monotonic()
            self._polling = self._begin(lambda: (self._source.poll(now_ns), now_ns))

    def take(self, seconds: float) -> tuple[SourceBatch[Any], int] | None:
        """What the poll found, and its time; None if that takes longer, of which the first time alone is waited for."""
        polling = self._polling
        if polling is None:
            return None
        if not _is_done(polling, 0.0 if self._is_late else seconds):
            self._is_late = True
            if time.monotonic() - self._asked_at > SILENT_SECONDS:
                raise SourceError(f"its source has not answered for {SILENT_SECONDS:g} s", where=f"stream {self._name}")
            return None
        self._polling, self._is_late = None, False
        found: tuple[SourceBatch[Any], int] = self._result(polling)
        return found

    def close(self, *, seconds: float) -> None:
        """Close the source, and end its thread as soon as it returns; raises what closing raised within the time."""
        if not self.is_busy:
            return
        closing = self._begin(self._source.close)
        self._calls.put(None)
        if _is_done(closing, seconds):
            self._result(closing)

    def _begin(self, function: Callable[[], Any]) -> Future[Any]:
        call: Future[Any] = Future()
        self._calls.put((call, function))
        return call

    def _result(self, call: Future[Any]) -> Any:
        error = call.exception()
        if error is not None and not isinstance(error, Exception):
            raise SourceError(f"its source raised {type(error).__name__}", where=f"stream {self._name}")
        return call.result()

    def _work(self) -> None:
        while (begun := self._calls.get()) is not None:
            call, function = begun
            try:
                call.set_result(function())
            except BaseException as error:
                # Even a plug-in that wants to end the program ends only its own stream.
                call.set_exception(error)


def _is_done(call: Future[Any], seconds: float) -> bool:
    return bool(wait([call], seconds).done)


class AgentStream:
    """Polls its source and hands out closed epochs; used from one thread at a time."""

    def __init__(
        self,
        node: str,
        configuration: StreamConfiguration,
        *,
        first_sequence: int = 0,
        most_bytes: int = DEFAULT_LIMITS.per_stream,
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        self.configuration = configuration
        source, self.memory_bytes = checked_source(configuration, most_bytes=most_bytes, pseudonyms=pseudonyms)
        self.source = WatchedSource(source, name=configuration.name)
        self._most_bytes = most_bytes
        self.notices: list[str] = []  # what there is to report, and who reports it takes out
        salts = configuration.salts
        first_salt = salts * (hash_bytes(node.encode()) % ROUNDS)
        self._is_of_values = configuration.parameters.kind == BUCKETS
        # All that was measured until then is recorded.
        self.until_ns = 0
        salt_of = (lambda sequence: first_salt + sequence % salts) if configuration.salted else None
        how: dict[str, Any] = {"salt_of": salt_of, "first_sequence": first_sequence}
        self._recorder: MetricRecorder | ColumnRecorder
        if isinstance(configuration.parameters, BucketArrayParameters) and not source.has_columns:
            name, parameters = configuration.name, configuration.parameters
            self._recorder = MetricRecorder(node, name, parameters, epoch_ns=configuration.epoch_ns, **how)
        else:
            from sojourn.node.agent.column_recorder import ColumnRecorder

            self._recorder = ColumnRecorder(node, configuration, lambda: self.source.missed, **how)

    @property
    def size(self) -> str:
        """What it has made of its array, for the next run; nothing if its table says how large it is."""
        now, first = self._recorder.parameters, self.configuration.parameters
        if self.configuration.error is None or not isinstance(now, BucketArrayParameters):
            return ""
        return json.dumps({"first": first.to_mapping(), "buckets": now.buckets, "per_instance": now.per_instance})

    def resume_size(self, size: str, room_bytes: int) -> None:
        """Go on with the array of the last run, unless its table has changed since, or there is no room for it."""
        first = self.configuration.parameters
        if not size or self.configuration.error is None or not isinstance(first, BucketArrayParameters):
            return
        try:
            noted = json.loads(size)
            if noted.pop("first") != first.to_mapping():
                return
            new = replace(first, **noted)
        except (SojournError, ValueError, TypeError, KeyError):
            return  # a damaged disk: it is found again
        more = sketch_bytes(new) - sketch_bytes(first)
        if more <= min(self._most_bytes - self.memory_bytes, room_bytes):
            self._recorder.parameters = new
            self.memory_bytes += more

    def rehearse(self) -> None:
        """Compile, or load, what recording packets needs: the ring of a source that is open fills meanwhile."""
        if not self._is_of_values:
            self._recorder.rehearse()

    @property
    def next_sequence(self) -> int:
        """The number of the next epoch, of this stream or of one that goes on after it."""
        return self._recorder.sequence

    def take(self, seconds: float) -> list[EncodedEpoch] | None:
        """Record what the source answers to `source.ask`; the epochs that are complete, None if it takes longer."""
        answered = self.source.take(seconds)
        if answered is None:
            return None
        found, now_ns = answered
        if len(found) and found.is_of_packets == self._is_of_values:
            kind, what = self.configuration.parameters.kind, "values" if self._is_of_values else "packets"
            raise UsageError(
                f"a {kind} records {what}, which metric {self.configuration.metric} does not give",
                where=f"stream {self.configuration.name}",
                action="use auto, lda, lds, sample or counter_vector for packets, bucket_array for all else",
            )
        self.until_ns = now_ns
        closed = [*self._recorder.record(found), *self._recorder.close_before(now_ns)]
        if closed and self.configuration.error is not None:
            self._fit(closed[-1], self.configuration.error)
        return closed

    def _fit(self, epoch: EncodedEpoch, error: float) -> None:
        """Size the array of the epochs that are begun from now on, for what an epoch held."""
        now, first = self._recorder.parameters, self.configuration.parameters
        assert isinstance(now, BucketArrayParameters)
        assert isinstance(first, BucketArrayParameters)
        held = Held(
            instances=epoch.key_count,
            measurements=epoch.recorded,
            error=error,
            means=values_of(self.configuration.metric) == "samples",
        )
        new = resized(now, first, held)
        if new is None or sketch_bytes(new) - sketch_bytes(now) > self._most_bytes - self.memory_bytes:
            return
        self._recorder.parameters = new
        self.memory_bytes += sketch_bytes(new) - sketch_bytes(now)
        self.notices.append(cost_text(now, new, held))

    def snapshots(self) -> list[EncodedEpoch]:
        """The epochs under construction, as they are now."""
        return self._recorder.snapshots()

    @property
    def ledger(self) -> Ledger | None:
        """Its last packets, if it keeps them."""
        return self._recorder.ledger

    def flow_packets(self, asked: PacketsQuestion) -> FlowPackets | None:
        """A flow's packets, as far as they are recorded; None if it keeps no ledger."""
        return self._recorder.flow_packets(asked, self.until_ns)

    def watch(self) -> bool:
        """Have `looks` to tell of from now on; False if other points cut this stream's packets nowhere."""
        return self._recorder.watch()

    def looks(self) -> list[EncodedEpoch]:
        """The open epochs up to places that other points may know, once for each `watch`."""
        return self._recorder.looks(self.until_ns)

    def finish(self) -> list[EncodedEpoch]:
        """Close what is open and has measurements."""
        return self._recorder.finish()
