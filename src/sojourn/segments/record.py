"""`PointRecorder`: one point's batches in, epochs out, for captures, interfaces, agents and routers.

Nothing is lost at an edge: a batch that does not fit is split, the front goes into the old epoch and the rest into the
next. With time slots, the two latest slots stay open, because captures are not in time order; a packet that is later
still gets an epoch of its own.

A point that reports keys keeps no flow table: a key reporter (`sketches.key_reporter`) per open epoch tells which rows
are the first of their instance, and only their keys are read. Memory: the sketches and reporters of the open epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.ids import FlowKeying, held_by_most
from sojourn.capture.decode.segmentation import WireSizes
from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.files import FilePath
from sojourn.core.keys import FlowKey, Key
from sojourn.core.results import Advance, silent
from sojourn.core.units import format_bytes, format_duration, parse_bytes, parse_duration, plural
from sojourn.epochs.epoch import MAX_KEYS, Cut, Epoch, KernelClock
from sojourn.segments.fleet.markers import MarkerCuts
from sojourn.segments.fleet.steady import SteadyStamps
from sojourn.segments.fleet.watch import Watch
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sketch import AnySketch, new_sketch

if TYPE_CHECKING:
    from sojourn.capture.files.reader import CaptureReader
    from sojourn.capture.live.reader import LiveReader
    from sojourn.capture.packets import Interface
    from sojourn.segments.plan import SegmentPlan
    from sojourn.sketches.lds import LdsParameters
    from sojourn.sketches.ledgers.ledger import Ledger
    from sojourn.sketches.weights import FlowWeights

OPEN_SLOTS = 2
LEAST_KEYS = 1024
LEAST_INTERVAL_NS = 1_000_000

SlotOf = Callable[[Int64Array], Int64Array]
KeysAt = Callable[[Int64Array], list[Any]]


def every(length_ns: int) -> SlotOf:
    """Slots of a fixed length, from the Unix epoch on."""
    if length_ns <= 0:
        raise ParameterError(f"epoch length {length_ns} ns", action="use a positive length")
    return lambda time_ns: time_ns // length_ns


class KeyReports:
    """The keys of all epochs of a point, each reported once per epoch; `keys_at` reads those of rows of the current
    batch (None where a row's is not known).

    ``expected_missed`` is how many keys the reporters' false positives hid; ``beyond`` counts keys over what an epoch
    can carry.
    """

    def __init__(self, keys_at: KeysAt, *, flows: int) -> None:
        self.keys_at = keys_at
        self.flows = max(LEAST_KEYS, flows)
        self.reported = self.beyond = 0
        self.expected_missed = 0.0
        self.memory_bits = 0
        self._open = 0

    def begin(self) -> _KeysOfEpoch:
        """The keys of a new epoch."""
        epoch = _KeysOfEpoch(self)
        self._open += 1
        self.memory_bits = max(self.memory_bits, self._open * epoch.reporter.memory_bits)
        return epoch

    def end(self, epoch: _KeysOfEpoch) -> None:
        """An epoch is closed: what it reported counts."""
        self._open -= 1
        self.reported += len(epoch.found)
        self.expected_missed += epoch.reporter.expected_missed


class _KeysOfEpoch:
    def __init__(self, reports: KeyReports) -> None:
        from sojourn.sketches.key_reporter import KeyReporter

        self._reports, self.reporter = reports, KeyReporter(reports.flows)
        self.found: dict[int, Key] = {}

    def see(self, ids: UInt64Array, rows: Int64Array) -> None:
        """Note the keys that the reporter calls new; after a rotation it may call one new again."""
        new = np.flatnonzero(self.reporter.first_seen(ids))
        fresh = [i for i, known in zip(new.tolist(), ids[new].tolist(), strict=True) if known not in self.found]
        room = MAX_KEYS - len(self.found)
        self._reports.beyond += max(0, len(fresh) - room)
        chosen = fresh[: max(room, 0)]
        if chosen:
            keys = zip(ids[chosen].tolist(), self._reports.keys_at(rows[chosen]), strict=True)
            self.found.update((i, key) for i, key in keys if key is not None)


@dataclass(eq=False)
class _Open:
    """An epoch under construction."""

    sequence: int
    sketch: AnySketch
    keys: _KeysOfEpoch | None
    cut: Cut | None = None
    was_set: bool = False

    def reported(self) -> tuple[Key, ...] | None:
        return None if self.keys is None else tuple(self.keys.found.values())


class PointRecorder:
    """One stream of one point, from packets (or other measurements) to epochs.

    ``slot_of`` says in which time slot a row belongs (None: all in one); ``keys`` reports which instances were active;
    ``salt_of`` gives each epoch its own salt by its number. Flows that are weighted need ``keys_at``, which reads the
    keys of the current batch. With ``markers`` epochs end at packets instead (`segments.fleet.markers`), and say so;
    with ``steady`` their stamps have no step but between two of them (`segments.fleet.steady`). What is recorded is
    entered in the ``ledger``, too, by the same stamps.
    """

    def __init__(
        self,
        node: str,
        stream: str,
        parameters: Parameters,
        *,
        slot_of: SlotOf | None = None,
        keys: KeyReports | None = None,
        keys_at: KeysAt | None = None,
        salt_of: Callable[[int], int] | None = None,
        first_sequence: int = 0,
        markers: MarkerCuts | None = None,
        steady: SteadyStamps | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.node, self.stream, self.parameters = node, stream, parameters
        self.sequence = self._first_sequence = first_sequence
        self._slot_of, self._keys, self._salt_of = slot_of, keys, salt_of
        self._weights = _Weights.of(parameters, keys_at)
        self._latest: AnySketch | None = None
        self._open: dict[int, _Open] = {}
        self._markers, self._steady, self._watch, self.ledger = markers, steady, Watch(), ledger
        self._is_on_scale = True
        self._place: int | None = None
        self._clock: KernelClock | None = None

    def record(self, batch: Any) -> list[Epoch]:
        """Record a batch; the epochs that it closed."""
        if self._weights is not None:
            self._weights.learn(batch)
        closed: list[Epoch] = []
        if self._markers is not None:
            self._record_between(self._markers, self._steadied(batch), closed)
            return closed
        for part, rows, slot in self._by_slot(batch):
            self._record_part(part, rows, slot, closed)
            while len(self._open) > OPEN_SLOTS:
                closed.append(self._close(min(self._open)))
        return closed

    def _steadied(self, batch: PacketBatch) -> PacketBatch:
        """The batch with stamps on the scale of the epoch under way."""
        if self._steady is None:
            return batch
        time_ns, self._is_on_scale = self._steady.steady(batch.time_ns)
        if self._open and not self._is_on_scale:
            self._open[0].was_set = True
        return batch if time_ns is batch.time_ns else replace(batch, time_ns=time_ns)

    def _go_on(self, markers: MarkerCuts) -> int:
        """An epoch has ended: stamps take up the present scale; by how much they are larger from now on."""
        by_ns = 0 if self._steady is None else self._steady.adopt()
        if by_ns:
            markers.shift(by_ns)
            if self.ledger is not None:
                self.ledger.begin_lead()
        return by_ns

    def _record_between(self, markers: MarkerCuts, batch: PacketBatch, closed: list[Epoch]) -> None:
        """Record what lies between markers in an epoch each; a marker is the first packet of its epoch."""
        rows, start = np.arange(len(batch)), 0
        cuts = dict(markers.places(batch))
        looks = dict(self._watch.places(batch)) if self._watch.is_on else {}
        for row in sorted({*cuts, *looks, len(batch)}):
            if row > start:
                self._record_part(batch.select(slice(start, row)), rows[start:row], 0, closed)
            if row in cuts:
                closed += [self._close(0, cuts[row])] if self._open else []
                self._place = cuts[row]
                if by_ns := self._go_on(markers):
                    batch = replace(batch, time_ns=batch.time_ns + by_ns)
            elif row in looks and self._open:
                self._watch.look(looks[row], self._ending(looks[row]))
            start = row

    def note(self, *, missed: int, clock: KernelClock | None) -> None:
        """Enter in the current epoch what the kernel could not hand over, and what it says of the clock."""
        self._clock = clock
        if missed:
            begun = self._begin(0)
            assert begun.cut is not None
            begun.cut = replace(begun.cut, missed=begun.cut.missed + missed)

    def _by_slot(self, batch: Any) -> Iterable[tuple[Any, Int64Array, int]]:
        """The batch cut where its time slots change, with the rows of each part in it."""
        rows = np.arange(len(batch))
        if self._slot_of is None or not len(batch):
            return [(batch, rows, 0)]
        slots = self._slot_of(batch.time_ns)
        if (slots == slots[0]).all():
            return [(batch, rows, int(slots[0]))]
        order = np.argsort(slots, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(slots[order])) + 1)
        return [(batch.select(part), part, int(slots[part[0]])) for part in parts]

    def _begin(self, slot: int) -> _Open:
        if slot not in self._open:
            keys = self._keys.begin() if self._keys is not None else None
            cut = None
            if self._markers is not None:
                cut = Cut(begins=self._place, continues=self.sequence > self._first_sequence)
                self._place = None
            self._open[slot] = _Open(self.sequence, self._new_sketch(), keys, cut, not self._is_on_scale)
            self.sequence += 1
        return self._open[slot]

    def _new_sketch(self) -> AnySketch:
        parameters = self.parameters
        if self._salt_of is not None:
            salted: Any = {"salt": self._salt_of(self.sequence)}
            parameters = replace(parameters, **salted)
        sketch = new_sketch(parameters)
        if self._weights is not None:
            self._weights.give(sketch)
        sketch.follow(self._latest)
        self._latest = sketch
        return sketch

    def _record_part(self, part: Any, rows: Int64Array, slot: int, closed: list[Epoch]) -> None:
        while len(part):
            begun = self._begin(slot)
            if self._markers is not None and not begun.sketch.recorded:
                self._markers.begin(int(part.time_ns[0]))
            taken = begun.sketch.record_batch(part)
            if self.ledger is not None:
                self.ledger.append(part if taken == len(part) else part.select(slice(0, taken)))
            if begun.keys is not None and taken:
                ids = part.flow_id if isinstance(part, PacketBatch) else part.instance_id
                begun.keys.see(ids[:taken], rows[:taken])
            if taken == len(part):
                return
            if not begun.sketch.recorded:
                raise ParameterError(
                    "a measurement does not fit even an empty sketch", where=self.stream, action="use wider counters"
                )
            closed.append(self._close(slot))
            part, rows = part.select(slice(taken, None)), rows[taken:]

    def _close(self, slot: int, ends: int | None = None) -> Epoch:
        ended = self._open.pop(slot)
        if self._keys is not None and ended.keys is not None:
            self._keys.end(ended.keys)
        cut = None if ended.cut is None else replace(ended.cut, ends=ends, clock=self._clock_of(ended))
        if self._steady is not None and ended.sketch.last_ns is not None:
            self._steady.begin_slew(ended.sketch.last_ns)
        # Nobody else has the sketch: no copy is needed.
        return Epoch(self.node, self.stream, ended.sequence, ended.sketch.freeze(), ended.reported(), cut)

    def _clock_of(self, epoch: _Open) -> KernelClock | None:
        """What the kernel says of its clock, and on which lead the stamps of an epoch are."""
        if self._clock is None or self._steady is None:
            return self._clock
        steady = self._steady
        sketch, slew = epoch.sketch, None
        if not epoch.was_set and sketch.first_ns is not None and sketch.last_ns is not None:
            slew = steady.slew(sketch.first_ns, sketch.last_ns)
        return replace(self._clock, lead_ns=steady.lead_ns, was_set=epoch.was_set, boot=steady.boot, slew=slew)

    def snapshots(self) -> list[Epoch]:
        """The epochs under construction as they are now, oldest first; recording goes on."""
        found = []
        for _, begun in sorted(self._open.items()):
            if begun.sketch.recorded:
                cut = None if begun.cut is None else replace(begun.cut, clock=self._clock_of(begun))
                found.append(Epoch(self.node, self.stream, begun.sequence, begun.sketch, begun.reported(), cut))
        return found

    def watch(self) -> bool:
        """Look at open epochs at places that other points know, until `looks` is called; False if there are none."""
        if self._markers is None:
            return False
        self._watch.begin()
        return True

    def looks(self, now_ns: int) -> list[Epoch]:
        """The open epoch at such places since `watch` was called, or behind its last packet if a silence followed."""
        seen = self._watch.end()
        if self._markers is None or not self._open:
            return []
        silence = self._markers.silence(self.now(now_ns)[0])
        open_now = [epoch for epoch in seen if epoch.sequence == self._open[0].sequence]
        return open_now if silence is None else [*open_now, self._ending(silence)]

    def _ending(self, name: int) -> Epoch:
        """The open epoch between markers, as if it ended here."""
        begun = self._open[0]
        assert begun.cut is not None
        cut = replace(begun.cut, ends=name, clock=self._clock_of(begun))
        return Epoch(self.node, self.stream, begun.sequence, begun.sketch, begun.reported(), cut)

    def now(self, time_ns: int) -> tuple[int, KernelClock | None]:
        """A time of the machine's clock as stamps have it now, and what is known of their clock."""
        clock = self._clock_of(self._open[0]) if 0 in self._open else None
        return time_ns if self._steady is None else self._steady.on_scale(time_ns), clock

    def close_before(self, time_ns: int) -> list[Epoch]:
        """Close the slots that ended before a time, oldest first; without slots nothing does.

        Between markers, an epoch ends by time if it is overdue.
        """
        if self._markers is not None:
            is_over, name = self._markers.overdue(self.now(time_ns)[0]) if self._open else (False, None)
            if not is_over:
                return []
            self._place = name
            closed = [self._close(0, name)]
            self._go_on(self._markers)
            return closed
        if self._slot_of is None:
            return []
        current = int(self._slot_of(np.array([time_ns], np.int64))[0])
        return [self._close(slot) for slot in sorted(self._open) if slot < current]

    def finish(self) -> list[Epoch]:
        """Close what is open, oldest first; an empty epoch if nothing was ever recorded."""
        if not self._open and self.sequence == self._first_sequence:
            self._begin(0)
        return [self._close(slot) for slot in sorted(self._open)]


def epochs_of(
    batches: Iterable[PacketBatch], recorder: PointRecorder, *, complete_until: Callable[[], int] | None = None
) -> Iterator[Epoch]:
    """All batches recorded; epochs as they close.

    `complete_until` tells, after each batch, the time before which no packet will come any more: epochs that end before
    it close at once, although nothing follows them.
    """
    for batch in batches:
        yield from recorder.record(batch)
        if complete_until is not None:
            yield from recorder.close_before(complete_until())
    yield from recorder.finish()


@dataclass(eq=False)
class _Weights:
    """What flows weigh by the policy of an LDS; all epochs share one table."""

    parameters: LdsParameters
    keys_at: KeysAt
    table: FlowWeights

    @classmethod
    def of(cls, parameters: Parameters, keys_at: KeysAt | None) -> _Weights | None:
        from sojourn.sketches.lds import LdsParameters
        from sojourn.sketches.stack import StackParameters
        from sojourn.sketches.weights import FlowWeights

        parts = [p for _, p in parameters.parts] if isinstance(parameters, StackParameters) else [parameters]
        weighted = [p for p in parts if isinstance(p, LdsParameters) and p.weights]
        if not weighted:
            return None
        if keys_at is None:
            raise UsageError("weights need the flows' keys", where="record", action="give keys_at")
        return cls(weighted[0], keys_at, FlowWeights({}))

    def learn(self, batch: PacketBatch) -> None:
        """The weights of flows that a batch is the first to show."""
        self.table.cover(batch.flow_id, lambda rows: self.parameters.policy.weigh(self.keys_at(rows)))

    def give(self, sketch: AnySketch) -> None:
        from sojourn.sketches.lds import Lds
        from sojourn.sketches.stack import Stack

        for part in sketch.parts.values() if isinstance(sketch, Stack) else (sketch,):
            if isinstance(part, Lds) and part.parameters.weights:
                part.weights = self.table


EXACT, LEDGER = "exact", "ledger"
Method = Literal["joint", "literal"]
SketchName = Literal["auto", "lds", "colate", "sample", "lda", "ledger", "exact"]


def ns_of(time: str | int | None, flag: str) -> int:
    """A length of time that was asked for, 0 where none was; none is shorter than a nanosecond."""
    if time is None:
        return 0
    if (length_ns := parse_duration(time, where=flag)) <= 0:
        raise ParameterError(f"{time!r} is no length of time", where=flag, action="give more than 0, such as 1s")
    return length_ns


def memory_of(memory: str | int | None, usual: str | int = "1MB") -> int:
    """The bytes of a point's sketches."""
    return parse_bytes(usual if memory is None else memory, where="--memory")


def decode_options(key: str, inner: bool, **more: Any) -> DecodeOptions:
    """How packets are decoded that are to be told apart at two points: as those of the wire."""
    return DecodeOptions(keying=FlowKeying.parse(key), inner=inner, wire=WireSizes(), **more)


def record(
    source: FilePath | Interface,
    *,
    sketch: SketchName = "auto",
    method: Method = "joint",
    memory: str | int | None = None,
    flows: int = 1000,
    loss: float = 0.01,
    salt: int = 0,
    parameters: Mapping[str, str] | None = None,
    weights: FilePath | None = None,
    interval: str | int | None = None,
    node: str | None = None,
    keys: bool = True,
    key: str = "five-tuple",
    inner: bool = False,
    identity_bytes: int = 68,
    where: str = "",
    strict: bool = False,
) -> Recording:
    """The packets of one point, a capture or an interface, as epochs: iterate, or `write` them.

    Both points need the same ``sketch``, ``memory``, ``flows``, ``loss``, ``salt``, ``weights`` and ``identity_bytes``:
    parameters follow from that alone.
    ``weights`` is a file of rules by which some flows count for more (LDS).
    """
    from sojourn.capture.packets import Interface, open_packets
    from sojourn.segments.plan import plan_segment

    if sketch in (EXACT, LEDGER):
        raise UsageError(f"{sketch} is not answered from epochs alone", action=f"use measure --sketch {sketch}")
    joint, size = method == "joint" and keys, memory_of(memory)
    plan = plan_segment(sketch, size, flows=flows, loss=loss, salt=salt, changes=parameters, joint=joint)
    if weights is not None:
        from sojourn.sketches.weights import WeightPolicy

        plan = plan.weighted(WeightPolicy.read(weights).to_text())
    options = decode_options(key, inner, identity_bytes=identity_bytes, flow_table=False)
    if isinstance(source, Interface):
        rehearse(plan.stream)
    interval_ns = ns_of(interval, "--interval")
    if 0 < interval_ns < LEAST_INTERVAL_NS:  # an epoch for every packet or two, each of the whole memory
        what = f"epochs of {format_duration(interval_ns)} are too short"
        raise UsageError(what, where="--interval", action=f"use {format_duration(LEAST_INTERVAL_NS)} or more")
    packets = open_packets(source, options, where=where, strict=strict)
    return Recording(packets, plan, node=node, interval_ns=interval_ns, key_flows=2 * flows if keys else 0)


def check_target(source: str | Path | Interface, target: Path) -> None:
    """Refuse to write epochs over the capture that they are made from: it would be emptied before it is read."""
    if isinstance(source, str | Path) and target.exists() and Path(source).exists() and target.samefile(source):
        raise UsageError("that is the capture itself", where=str(target), action="write the epochs to another file")


def rehearse(parameters: Parameters, *, markers: MarkerCuts | None = None) -> None:
    """Compile, or load, what recording packets and encoding epochs need, before there are packets to lose."""
    from ipaddress import IPv4Address

    from sojourn.epochs.wire import encode
    from sojourn.segments.planning.layout import SEGMENT

    made_up, one = FlowKey(IPv4Address(0), 0, IPv4Address(0), 0, 0), np.ones(1, np.uint64)
    packet = PacketBatch(one, one, np.ones(1, np.int64), np.ones(1, np.int64))

    def keys_at(rows: Int64Array) -> list[Key | None]:
        return [made_up] * len(rows)

    known: dict[str, Any] = {"keys": KeyReports(keys_at, flows=1), "keys_at": keys_at, "markers": markers}
    for epoch in epochs_of([packet], PointRecorder("rehearsal", SEGMENT, parameters, **known)):
        encode(epoch)


class Recording:
    """The epochs of one point as they close; iterate once, or `write` them.

    Afterwards ``epochs`` says how many there were, ``summary`` what was seen and ``warnings`` what is doubtful.
    """

    def __init__(
        self,
        packets: AbstractContextManager[CaptureReader | LiveReader],
        plan: SegmentPlan,
        *,
        node: str | None,
        interval_ns: int,
        key_flows: int,
    ) -> None:
        self._packets, self._plan, self._node = packets, plan, node
        self._slot_of = every(interval_ns) if interval_ns else None
        self._key_flows = key_flows
        self._keys: KeyReports | None = None
        self._reader: CaptureReader | LiveReader | None = None
        self.epochs = self.size_bytes = 0

    def __iter__(self) -> Iterator[Epoch]:
        with self._opened() as reader:
            yield from self._recorded(reader, silent)

    def _opened(self) -> AbstractContextManager[CaptureReader | LiveReader]:
        if self._reader is not None:
            raise UsageError("these epochs were read already", where="record", action="record again, or keep a list")
        return self._packets

    def _recorded(self, reader: CaptureReader | LiveReader, advance: Advance) -> Iterator[Epoch]:
        from sojourn.segments.planning.layout import SEGMENT

        self._reader = reader
        self._keys = KeyReports(reader.keys_at, flows=self._key_flows) if self._key_flows else None
        node = self._node or Path(reader.name).name
        known: dict[str, Any] = {"slot_of": self._slot_of, "keys": self._keys, "keys_at": reader.keys_at}
        recorder = PointRecorder(node, SEGMENT, self._plan.stream, **known)
        live: Any = reader if hasattr(reader, "complete_until_ns") else None
        complete_until = (lambda: live.complete_until_ns) if live is not None else None
        for epoch in epochs_of(_advancing(reader, advance), recorder, complete_until=complete_until):
            self.epochs += 1
            yield epoch

    def write(self, open_file: Callable[[], AbstractContextManager[BinaryIO]], *, advance: Advance = silent) -> None:
        """Write every epoch as it closes, so that what ends the program takes only the open one with it.

        The file is opened when the packets are: a source that cannot be read leaves no file behind.
        """
        from sojourn.epochs.wire import encode

        with self._opened() as reader, open_file() as file:
            for epoch in self._recorded(reader, advance):
                self.size_bytes += file.write(encode(epoch))
                file.flush()

    @property
    def _read(self) -> CaptureReader | LiveReader:
        if self._reader is None:
            raise UsageError("nothing was recorded yet", where="record", action="iterate over it first, or write it")
        return self._reader

    @property
    def summary(self) -> str:
        reader, keys = self._read, self._keys
        size = f", {format_bytes(self.size_bytes)}" if self.size_bytes else ""
        lines = [f"{plural(reader.ip_packets, 'packet')} in {plural(self.epochs, 'epoch')}{size}"]
        if keys is not None and self._plan.name != "lda":
            lines.append(
                f"{plural(keys.reported, 'key')} reported, {keys.expected_missed:.2g} missed in expectation; "
                f"the key reporter took {format_bytes(keys.memory_bits / 8)} beside the sketches"
            )
        if ignored := sum(reader.ignored.values()):
            lines.append(f"{ignored:,} of {plural(reader.packets, 'frame')} ignored; sojourn flows -v tells why")
        return "\n".join(lines)

    @property
    def warnings(self) -> list[str]:
        reader = self._read
        warnings = list(reader.warnings)
        if self._keys is not None and self._keys.beyond:
            warnings.append(f"{plural(self._keys.beyond, 'key')} exceed what epochs can carry; shorten --interval")
        wanted = len(reader.cut)
        by_header = reader.snap_length - 14 if reader.snap_length else wanted
        held = min(by_header, held_by_most(reader.cut, reader.wire_packets))
        if held < wanted:
            warnings.append(
                f"the capture holds only {held} bytes of a packet, fewer than the {wanted} that identify it; "
                f"record both points with --identity-bytes {max(20, held)}"
            )
        return warnings


def _advancing(reader: CaptureReader | LiveReader, advance: Advance) -> Iterator[PacketBatch]:
    for batch in reader:
        advance(reader.name, reader.share_read)
        yield batch
