"""Runs of a pair of streams, answered from the store as far as both ends are there; what a worker process does.

A run is answered as soon as it is complete: both ends have stored all epochs between two places that both know. Which
are complete is told by the epochs' places alone, so an end that is away costs nothing but the memory of its places. Of
a run that cannot be answered the reason is stored instead.

Guarantee: at most `most_runs` runs of a call, epochs of `most_bytes` of counters each and together `MOST_EPOCHS` an
end. Cost: two epochs are decoded and their cells and samples compared for each run: some 6 ms with a few flows.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import URL

from sojourn.core.errors import SojournError, UsageError
from sojourn.core.estimates import Estimate
from sojourn.core.units import format_bytes
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.estimation.posterior.history import History
from sojourn.segments.fleet.answers import MOST_PACKETS, RunAnswer, SampledDelays, answer_run
from sojourn.segments.fleet.leads import FARTHEST_NS, Kernels, Leads, was_set
from sojourn.segments.fleet.markers import SILENCE_NS
from sojourn.segments.fleet.runs import PlacedEpoch, Run, align, joined
from sojourn.segments.fleet.stored import answer_bytes, clock_bytes, read_history
from sojourn.store.epochs import EpochStore, read_store
from sojourn.store.runs import AnsweredRuns, KnownPair, RunRow, RunStore

# How long a sender's ledger is asked for, if its agent does not answer.
NAMING_NS = 600_000_000_000
# Places that are looked at in search of common ones: of a pair that has none the rest is given up.
MOST_PLACES = 4000
MOST_EPOCHS = 500
AHEAD_BYTES = 1 << 20  # of counters, decoded
# Epochs that are looked at for packets that came late from them, where epochs are short.
MOST_BEFORE = 8


@dataclass(frozen=True, kw_only=True)
class AnsweredPair(AnsweredRuns):
    """What was answered of a pair."""

    is_whole: bool  # whether nothing is left that could be answered now


def answer_pairs(
    url: URL, pairs: Sequence[KnownPair], *, most_runs: int, most_bytes: int, together: int = 1
) -> list[AnsweredPair]:
    """The complete runs of pairs that are not answered yet, up to some `together` as one."""
    store = read_store(url)
    answered = []
    for pair in pairs:
        if most_runs <= 0:
            break
        complete = joined(_complete(RunStore(store), pair), together)
        found = _answer_pair(store, pair, complete, most_runs, most_bytes)
        if found is not None:
            answered.append(found)
            most_runs -= len(found.runs)
    return answered


def _answer_pair(
    store: EpochStore, pair: KnownPair, complete: Sequence[Run], most_runs: int, most_bytes: int
) -> AnsweredPair | None:
    chosen = complete[:most_runs]
    if not chosen:
        return None
    sender, receiver = (Reader(store, *end, most_bytes) for end in pair.pair.ends)
    sender.expect(epoch for run in chosen for epoch in run.sent)
    receiver.expect(epoch for run in chosen for epoch in run.received)
    rows, last = [], (pair.sent_until, pair.received_until)
    history = last_history(RunStore(store), pair)
    for run in chosen:
        follows = run.follows(last)
        row, history = answered_row(run, sender, receiver, follows=follows, history=history)
        rows.append(row)
        last = run.end(last)
    return AnsweredPair(number=pair.number, runs=tuple(rows), until=last, is_whole=len(chosen) == len(complete))


def _complete(runs: RunStore, pair: KnownPair) -> list[Run]:
    """The runs of a pair that both ends have stored, and that are not answered."""
    (sent, received), until = pair.pair.ends, (pair.sent_until, pair.received_until)
    ends = [runs.placed(*end, after=last, limit=MOST_PLACES) for end, last in zip((sent, received), until, strict=True)]
    return align(*ends)


def skip_run(store: EpochStore, pair: KnownPair, reason: str) -> AnsweredPair | None:
    """The next run of a pair without an answer, for this reason; None if there is none."""
    complete = _complete(RunStore(store), pair)
    if not complete:
        return None
    last = pair.sent_until, pair.received_until
    row = _unanswered(complete[0], reason, complete[0].follows(last))
    return AnsweredPair(number=pair.number, runs=(row,), until=complete[0].end(last), is_whole=len(complete) == 1)


class Reader:
    """The epochs of one stream by their numbers, run after run.

    What is expected after a run is read with it, as far as `AHEAD_BYTES` hold epochs of the kind that came last.
    """

    def __init__(self, store: EpochStore, node: str, stream: str, most_bytes: int) -> None:
        self._read: Callable[[list[int]], list[Epoch]] = lambda numbers: store.numbered(
            node, stream, numbers, admit=self._admit
        )
        self._most_bytes = most_bytes
        self._given: dict[int, EncodedEpoch] = {}
        self._at_hand: dict[int, Epoch] = {}
        self._expected: list[int] = []
        self._decoded_bytes = AHEAD_BYTES

    def _admit(self, epoch: EncodedEpoch) -> None:
        if epoch.decoded_bytes > self._most_bytes:
            what = f"an epoch takes {format_bytes(epoch.decoded_bytes)} of memory"
            raise UsageError(what, where=epoch.stream, action="use a smaller plan")
        self._decoded_bytes = max(epoch.decoded_bytes, 1)

    def add(self, epoch: EncodedEpoch) -> None:
        """Know an epoch that is not stored; nobody has looked into it, and it is decoded when its run is answered."""
        self._given[epoch.sequence] = epoch

    def expect(self, placed: Iterable[PlacedEpoch]) -> None:
        """These will be asked for, in order of their numbers."""
        self._expected = [epoch.sequence for epoch in placed]

    def epochs(self, placed: Sequence[PlacedEpoch]) -> list[Epoch]:
        """All of these, or a `SojournError`."""
        if len(placed) > MOST_EPOCHS:
            raise UsageError(f"{len(placed)} epochs lie between two common markers", action="look at both ends")
        if not placed:
            return []
        numbers = [epoch.sequence for epoch in placed]
        found = self._known(numbers, self._after(numbers[-1]))
        around = placed[0].number_before
        kept = [n for n in self._at_hand if around - MOST_BEFORE < n <= around or n >= numbers[-1]]
        self._at_hand = {number: self._at_hand[number] for number in kept}
        if len(found) < len(numbers):
            raise UsageError("some of its epochs cannot be decoded, or are gone")
        return [found[number] for number in numbers]

    def before(self, placed: PlacedEpoch) -> list[Epoch]:
        """The epochs that one follows, back as far as packets can be late; none behind a gap."""
        found: list[Epoch] = []
        number, continues, until_ns = placed.number_before, placed.cut.continues, placed.first_ns
        while continues and len(found) < MOST_BEFORE and number in self._known([number]):
            epoch = self._at_hand[number]
            found.insert(0, epoch)
            if epoch.cut is None or until_ns is None or (epoch.first_ns or 0) <= until_ns - SILENCE_NS:
                break
            number, continues = number - epoch.cut.sequences, epoch.cut.continues
        return found

    def _known(self, numbers: list[int], ahead: Sequence[int] = ()) -> dict[int, Epoch]:
        missing = [number for number in numbers if number not in self._at_hand]
        for number in self._given.keys() & set(missing):
            self._admit(self._given[number])
            self._at_hand[number] = self._given[number].decode()
        if stored := [number for number in missing if number not in self._given]:
            self._at_hand.update((epoch.sequence, epoch) for epoch in self._read([*stored, *ahead]))
        return {number: self._at_hand[number] for number in numbers if number in self._at_hand}

    def _after(self, number: int) -> list[int]:
        """The numbers that are expected after one, as many as may be read ahead."""
        start = bisect_right(self._expected, number)
        return self._expected[start : start + AHEAD_BYTES // self._decoded_bytes - 1]


def last_history(runs: RunStore, pair: KnownPair) -> History | None:
    """What the last stored run of a pair says of flows; None if it has no answer."""
    row = runs.last(pair.number)
    return None if row is None or not row.data else read_history(row.data)


def answered_run(run: Run, sender: Reader, receiver: Reader, history: History | None = None) -> RunAnswer:
    """The answer of a run; a `SojournError` says why there is none. `history` is of the run right before."""
    ends = sender.epochs(run.sent), receiver.epochs(run.received)
    arrived = run.received[:1]
    return answer_run(
        *ends,
        before=lambda: sender.before(run.sent[0]),
        arrived_before=lambda: receiver.before(arrived[0]) if arrived else [],
        history=history,
    )


def answered_row(
    run: Run, sender: Reader, receiver: Reader, *, follows: bool, history: History | None
) -> tuple[RunRow, History | None]:
    """A run's row for the store, with its answer or the reason why there is none, and its flows' history.

    `history` is that of the last run; behind a gap it says nothing.
    """
    try:
        answer = answered_run(run, sender, receiver, history if follows else None)
    except SojournError as error:
        return _unanswered(run, str(error), follows), None
    except MemoryError:
        raise  # this process has had enough: a new one may have room for it
    except Exception as error:
        # One run that cannot be answered must not keep all others from it.
        return _unanswered(run, f"a fault of ours, please report it ({type(error).__name__}: {error})", follows), None
    return row_of(answer, size_bytes=run.size_bytes, follows=follows), History.of(answer.interval.flows)


def row_of(answer: RunAnswer, *, size_bytes: int, follows: bool) -> RunRow:
    """An answer's row for the store."""
    interval = answer.interval
    mean = interval.totals.delays.mean
    # Of stamps on more than one lead there is no raw delay.
    tells = not was_set(answer.kernels)
    return RunRow(
        start_ns=interval.first_ns,
        end_ns=interval.last_ns,
        follows=follows,
        sent=interval.totals.sent,
        received=interval.totals.received,
        flows=0 if interval.flows is None else len(interval.flows.flow_id),
        size_bytes=size_bytes,
        lost=interval.totals.losses.lost,
        raw_mean_ns=mean.value if tells and isinstance(mean, Estimate) else None,
        least_raw_ns=int(answer.pairs.raw_delay_ns.min()) if tells and len(answer.pairs) else None,
        raw_p99_ns=_p99(answer.sampled) if tells else None,
        lead_ns=_lead(answer.kernels),
        clock=clock_bytes(answer),
        data=answer_bytes(answer),
        **_of_ledger(answer),
    )


def _of_ledger(answer: RunAnswer) -> dict[str, Any]:
    """What ledgers tell of a run, or what the sender's is to be asked, and until when."""
    if answer.ledger is not None:
        return {"ledger": answer.ledger.to_bytes()}
    if answer.naming is not None:
        return {"ledger": answer.naming.to_bytes(), "naming_until_ns": time.time_ns() + NAMING_NS}
    return {}


def _lead(kernels: Kernels) -> int | None:
    leads = Leads.of(kernels)
    lead = None if leads is None else leads.receiver_ns - leads.sender_ns
    return None if lead is None or abs(lead) > FARTHEST_NS else lead


def _p99(sampled: SampledDelays) -> float | None:
    """About the raw p99 of all packets of a run, by its sample, however small that is."""
    if not len(sampled.delay_ns):
        return None
    order = np.argsort(sampled.delay_ns)
    reached = np.cumsum(sampled.weight[order])
    return float(sampled.delay_ns[order][np.searchsorted(reached, 0.99 * reached[-1])])


def _unanswered(run: Run, reason: str, follows: bool) -> RunRow:
    times = [time for epoch in run.sent for time in (epoch.first_ns, epoch.last_ns) if time is not None]
    counts = [min(sum(epoch.recorded for epoch in end), MOST_PACKETS) for end in (run.sent, run.received)]
    return RunRow(
        start_ns=min(times, default=0),
        end_ns=max(times, default=0),
        follows=follows,
        sent=counts[0],
        received=counts[1],
        flows=0,
        size_bytes=run.size_bytes,
        lost=None,
        raw_mean_ns=None,
        least_raw_ns=None,
        raw_p99_ns=None,
        clock=b"",
        data=b"",
        reason=reason[:300],
    )
