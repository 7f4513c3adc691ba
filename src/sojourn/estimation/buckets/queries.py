"""Range queries: the sum or mean of a metric between two times, for everything, for instances or for groups of them.

Epochs of one salt
are merged as they come (they are linear), so that any range costs at most one equation system per salt, and memory for
one epoch of each.

A range may cut epochs. ``whole`` takes an epoch with any measurement in the range, ``inside`` only those that lie in
it, ``pro-rata`` the share of an epoch's time that lies in it: its amount is then known only to lie between nothing and
all, and the interval says so. What an answer rests on is in `covered`.

Shahzad and Ganji, "IoTm", §III.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.core.errors import UsageError
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.estimation.buckets.adding import BucketEpoch, BucketSums, Names, read_buckets
from sojourn.estimation.buckets.joint import estimate_sums_jointly
from sojourn.estimation.buckets.rtt import estimate_round_trips
from sojourn.sketches.bucket_array import BucketArray


@dataclass(frozen=True, eq=False)
class _CountedValues:
    """An epoch of values, as an epoch of round trips: each was counted when it came, and all came."""

    sent: BucketArray

    @property
    def round_trips(self) -> Int64Array:
        return self.sent.column("sum")

    @property
    def usable(self) -> BoolArray:
        return np.ones(self.sent.parameters.buckets, np.bool_)


def estimate_means_jointly(
    sketches: Sequence[BucketArray], instance_id: UInt64Array, *, unit: str, groups: Sequence[Sequence[int]] = ()
) -> list[Answer]:
    """The mean of each instance's values over all epochs, or of all values of each group; the arrays must count."""
    epochs = [_CountedValues(sketch) for sketch in sketches]
    answers = estimate_round_trips(epochs, instance_id, unit_ns=1, groups=groups)
    return [replace(answer, unit=unit) if isinstance(answer, Estimate) else answer for answer in answers]


Stat = Literal["sum", "mean"]
Method = Literal["literal", "joint"]
Cut = Literal["whole", "inside", "pro-rata"]
# Others than those read are read as they are needed.
AnyEpoch: TypeAlias = BucketEpoch | Epoch | EncodedEpoch
EXACT = "exact total"
# The end of a range up to now: later than any measurement.
FOREVER_NS = 2**63 - 1
NO_LIMIT_BYTES = 2**63
# Instances that are decoded together: a thousand take some 15 s, and time grows with their third power.
MOST_TOGETHER = 1000


@dataclass(frozen=True, kw_only=True)
class RangeQuery:
    """A stretch of time, and what is asked of it."""

    from_ns: int
    to_ns: int
    stat: Stat = "sum"
    method: Method = "joint"
    cut: Cut = "whole"


@dataclass(frozen=True)
class RangeAnswer:
    """An answer, the epochs it rests on and the time they cover, as disjoint spans."""

    answer: Answer
    epochs: int
    covered: tuple[tuple[int, int], ...]


class RangeSelection:
    """The epochs of a range, added up as they come: those that count whole by salt, those that count by a share apart.

    Each epoch is let go of once it is merged. What cannot be merged stays in memory, and is refused beyond `most_bytes`
    of decoded counters.
    """

    def __init__(self, epochs: Iterable[AnyEpoch], query: RangeQuery, *, most_bytes: int = NO_LIMIT_BYTES) -> None:
        self._query, self._most_bytes, self._held_bytes = query, most_bytes, 0
        self._sums = BucketSums()
        self._partial: list[tuple[BucketEpoch, float]] = []
        self._whole_names: dict[int, str] | None = {}
        self._origin: Epoch | EncodedEpoch | None = None
        self.names: dict[int, str] | None = {}
        self.count = 0
        spans: list[tuple[int, int]] = []
        for found in epochs:
            epoch = found if isinstance(found, BucketEpoch) else read_buckets(found)
            if (placed := _placed(epoch, query)) is not None:
                spans.append(placed[0])
                self.count += 1
                self._take(epoch, placed[1])
            self._origin = epoch.header
        self.covered = joined_spans(spans)

    def _take(self, epoch: BucketEpoch, share: float | None) -> None:
        """Add an epoch to others, or keep it if there is room for it."""
        if share is not None or not self._sums.has(epoch):
            self._held_bytes += epoch.parameters.decoded_bytes
            if self._held_bytes > self._most_bytes:
                raise too_large(f"{self._held_bytes} bytes of counters that cannot be added up", self._most_bytes)
        self.names = _with_names(self.names, epoch.names)
        if share is not None:
            self._partial.append((epoch, share))
            return
        self._whole_names = _with_names(self._whole_names, epoch.names)
        self._sums.add(epoch)

    def answers(self, groups: Sequence[Sequence[int]], *, unit: str) -> list[RangeAnswer]:
        """An answer for each group of instances, by their ids; joint decoding takes the lists of keys as complete."""
        query = self._query
        if not self.count:
            return [RangeAnswer(Unanswered(Reason.NO_EPOCHS_IN_RANGE), 0, ())] * len(groups)
        answers = _answers(self._sums.epochs(), self._whole_names, groups, query, unit)
        for epoch, share in self._partial:
            for i, part in enumerate(_answers([epoch.epoch()], _with_names({}, epoch.names), groups, query, unit)):
                answers[i] = _with_part(answers[i], part, share, query.stat)
        return [RangeAnswer(answer, self.count, self.covered) for answer in answers]

    @property
    def remarks(self) -> list[str]:
        """Why the answers are literal though joint ones were asked for."""
        if self._query.method == "literal":
            return []
        if self.names is None:
            return ["joint decoding needs the epochs' lists of keys, some have none: answered literally"]
        if len(self.names) > MOST_TOGETHER:
            return [f"{len(self.names)} instances, jointly decoded are at most {MOST_TOGETHER}: answered literally"]
        return []

    def listed(self) -> dict[int, str]:
        """Ids and names of all instances, which the epochs must have listed."""
        if self.names is None:
            raise UsageError(
                "instances can only be named from lists of keys",
                where=f"{self._origin.node}/{self._origin.stream}" if self._origin is not None else "",
                action="record with keys, or ask for an instance",
            )
        return self.names


def too_large(what: str, most_bytes: int) -> UsageError:
    """Why a range is refused before more of it is decoded, and what to narrow."""
    return UsageError(
        f"the range holds {what}, the limit is {most_bytes}",
        where="query",
        action="ask for a shorter range, or for one node",
    )


def _placed(epoch: BucketEpoch, query: RangeQuery) -> tuple[tuple[int, int], float | None] | None:
    """The span that an epoch adds to a range and its share (None: it counts whole); None for an epoch outside it."""
    first, last = epoch.header.first_ns, epoch.header.last_ns
    if first is None or last is None or not epoch.header.overlaps(query.from_ns, query.to_ns):
        return None
    low, high = max(first, query.from_ns), min(last, query.to_ns)
    if query.cut == "whole" or (low, high) == (first, last):
        return (first, last), None
    if query.cut == "pro-rata":
        return (low, high), (high - low) / (last - first)
    return None


def joined_spans(spans: Iterable[tuple[int, int]], *, gap_ns: int = 0) -> tuple[tuple[int, int], ...]:
    """Disjoint spans, in order; those no further apart than a gap are one."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1] + gap_ns:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


def _with_names(names: dict[int, str] | None, more: Names | None) -> dict[int, str] | None:
    """Both lists, which are complete only if both are there."""
    if names is None or more is None:
        return None
    names.update(more)
    return names


def answer_total(epochs: Iterable[AnyEpoch], query: RangeQuery, *, unit: str) -> RangeAnswer:
    """The sum or mean of all measurements of the range: exact, but for epochs by their share."""
    low_sum = low_count = 0
    parts: list[tuple[int, int, float]] = []
    spans: list[tuple[int, int]] = []
    for found in epochs:
        epoch = found if isinstance(found, BucketEpoch) else read_buckets(found)
        if (placed := _placed(epoch, query)) is None:
            continue
        span, share = placed
        spans.append(span)
        # As Python's numbers: buckets that hold 63 bits each add up to more than 64.
        amount, recorded = sum(epoch.buckets[:, 0].tolist()), epoch.header.recorded
        if share is None:
            low_sum += amount
            low_count += recorded
        else:
            parts.append((amount, recorded, share))
    if not spans:
        return RangeAnswer(Unanswered(Reason.NO_EPOCHS_IN_RANGE), 0, ())
    value_sum = low_sum + sum(amount * share for amount, _, share in parts)
    value_count = low_count + sum(count * share for _, count, share in parts)
    if query.stat == "mean":
        means = [amount / count for amount, count, _ in parts if count]
        value = value_sum / max(value_count, 1e-9)
        low, high = min([value, *means]), max([value, *means])
    else:
        value = value_sum
        low, high = low_sum, low_sum + sum(amount for amount, _, _ in parts)
    estimate = Estimate(float(value), float(low), float(high), round(value_count), EXACT, unit)
    return RangeAnswer(estimate, len(spans), joined_spans(spans))


def _answers(
    epochs: Sequence[Epoch],
    listed: dict[int, str] | None,
    groups: Sequence[Sequence[int]],
    query: RangeQuery,
    unit: str,
) -> list[Answer]:
    if not epochs:
        return [Unanswered(Reason.NO_EPOCHS_IN_RANGE)] * len(groups)
    sketches: list[BucketArray] = [epoch.sketch for epoch in epochs]  # type: ignore[misc]
    if any(sketch.parameters.signed for sketch in sketches):
        raise UsageError(
            "its values may be below 0: what instances that share a bucket added cannot be told apart",
            where=epochs[0].stream,
            action="ask for the total, without an instance",
        )
    if query.stat == "mean" and not all(sketch.has("count") for sketch in sketches):
        raise UsageError(
            "the means of instances need buckets that count",
            where=epochs[0].stream,
            action="record with count_bits, or ask for the sum",
        )
    if query.method == "joint" and listed is not None and len(listed) <= MOST_TOGETHER:
        return _jointly(sketches, listed, groups, query.stat, unit)
    if listed is not None and query.method == "joint" and any(len(group) > 1 for group in groups):
        raise UsageError(
            f"groups of {len(listed)} instances are too many to decode, the limit is {MOST_TOGETHER}",
            where=epochs[0].stream,
            action="ask for a shorter range, or leave the group out",
        )
    return _literally(sketches, groups, query.stat, unit)


def _jointly(
    sketches: list[BucketArray], listed: dict[int, str], groups: Sequence[Sequence[int]], stat: Stat, unit: str
) -> list[Answer]:
    """All groups in one decoding; an instance that is not listed adds nothing to its group."""
    place = {number: i for i, number in enumerate(sorted(listed))}
    members = [[place[number] for number in group if number in place] for group in groups]
    if not any(members):
        return [Unanswered(Reason.UNKNOWN_INSTANCE)] * len(groups)
    decode = estimate_sums_jointly if stat == "sum" else estimate_means_jointly
    answers = iter(decode(sketches, np.array(list(place), np.uint64), unit=unit, groups=list(filter(None, members))))
    return [next(answers) if group else Unanswered(Reason.UNKNOWN_INSTANCE) for group in members]


def _literally(sketches: list[BucketArray], groups: Sequence[Sequence[int]], stat: Stat, unit: str) -> list[Answer]:
    """As published, instance by instance: sums salt by salt, means by the ratio of both."""
    from sojourn.estimation.published.iotm import estimate_means_literally, estimate_sums_literally

    if any(len(group) != 1 for group in groups):
        raise UsageError("groups are decoded jointly", where="query", action="leave the method out, or the group")
    ids: UInt64Array = np.array([group[0] for group in groups], np.uint64)
    if stat == "mean":
        return estimate_means_literally([(sketch, sketch) for sketch in sketches], ids, unit=unit)
    return estimate_sums_literally(sketches, ids, unit=unit)


def combined(answers: Sequence[Answer], stat: Stat) -> Answer:
    """Independent answers about parts as one about the whole: the sum, or the mean weighted by samples."""
    known = [answer for answer in answers if isinstance(answer, Estimate)]
    if not known:
        return answers[0] if answers else Unanswered(Reason.NO_EPOCHS_IN_RANGE)
    if stat == "sum" and len(known) < len(answers):
        return next(answer for answer in answers if not isinstance(answer, Estimate))
    samples = sum(estimate.samples for estimate in known)
    weight = [1.0 if stat == "sum" else e.samples / samples if samples else 1 / len(known) for e in known]
    value = sum(w * e.value for w, e in zip(weight, known, strict=True))
    # A published value need not lie in the middle of its interval: what it is off by adds up, chance does not.
    middle = sum(w * (e.low + e.high) / 2 for w, e in zip(weight, known, strict=True))
    half = float(np.sqrt(sum((w * (e.high - e.low) / 2) ** 2 for w, e in zip(weight, known, strict=True))))
    if not np.isfinite(half):
        return replace(known[0], value=value, low=-np.inf, high=np.inf, samples=samples)
    low, high = min(middle - half, value), max(middle + half, value)
    return replace(known[0], value=value, low=low, high=high, samples=samples)


def _with_part(whole: Answer, part: Answer, share: float, stat: Stat) -> Answer:
    """An answer enlarged by the share of an epoch of which anything from nothing to all may lie in the range."""
    if not isinstance(part, Estimate):
        return whole
    if not isinstance(whole, Estimate):
        whole = replace(part, value=0.0, low=0.0, high=0.0, samples=0)
    samples = whole.samples + round(share * part.samples)
    if stat == "mean":
        weight = share * part.samples / max(whole.samples + share * part.samples, 1e-9)
        value = (1 - weight) * whole.value + weight * part.value
        low, high = min(whole.low, part.low), max(whole.high, part.high)
        return replace(whole, value=value, low=low if whole.samples else part.low, high=high, samples=samples)
    value = whole.value + share * part.value
    return replace(
        whole, value=value, low=whole.low + min(0.0, part.low), high=whole.high + max(0.0, part.high), samples=samples
    )
