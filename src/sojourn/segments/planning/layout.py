"""Layout: how a memory is shared out among cells, counters, samples and the flow-blind LDA, for expected traffic.

- LDA: a ladder of eight banks, 1, ½, ¼ …: some bank suits any loss rate up to tens of per cent, without tuning. Where
  more packets are lost than its rarest bank has room for (or nobody knows how many will be), up to four still rarer
  banks follow, each an eighth of the one before, so that some cells stay clean whatever is lost.
- LDS: four rows. Without loss a flow has one cell per row and all rows see everything; with loss it has as many cells
  as keep strangers rare, and the rows sample 1, 1, ⅛ and 1/64 (1, ¼, 1/16 and 1/64 from 1 % loss on).
- Sample: eight groups per flow, so that most flows have one of their own, but no more than an eighth of the slots.
- COLATE: counters with counts, 16 per flow or fewer where that would leave a flow no counter of its own.
- Auto, decoded jointly. Nothing is lost: exact cells only, one per row and flow, as wide as the packets that a survey
  counted need them; where these are too few to be exact, three rows of counters that take whole flows and keep sums in
  microseconds, a seventh more of them. Otherwise whichever is expected to be closer (`Expected`): counters, of which a
  lost packet spoils one, with a sample of an eighth beside them (below half a cell per flow, a tenth for cells that
  sample instead, in which elephants keep clean ones); or samples, where so much is lost that few counters stay clean,
  or a sample holds most flows whole. Exact cells of whole flows (two per flow) go beside either where a flow loses one
  packet or so, or where they take an eighth at most. Where hardly any flow loses packets, and such cells are too few to
  be exact, rows of counters in microseconds take their place, with a small sample beside them.
  Not decoded jointly (or for too many flows): exact cells, and the rest spread cells that sample, or samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.segments.planning.regret import CLOSE, LARGE_FLOW, LDS_ROWS, Case, Split, least_regret, plausible_cases
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import MOST_SLOTS, SampleParameters

FLOWS, SPREAD, ELEPHANTS, SAMPLES, SEGMENT = "flows", "spread", "elephants", "samples", "segment"
RECEIPT = "receipt"
LADDER = tuple(2.0**-i for i in range(8))
RARER = tuple(2.0**-i for i in (10, 13, 16, 19))
MOST_LOST = 1e7  # packets, where nothing is known beforehand: a gigabit for some minutes, half of it lost
LITTLE_LOSS_ROWS = (1.0, 1.0, 0.125, 0.015625)
MUCH_LOSS_ROWS = (1.0, 0.25, 0.0625, 0.015625)
MUCH_LOSS = 0.01
MOST_CELLS_PER_FLOW = 64
LEAST_LOSS = 1e-5
MOST_JOINT_SPREAD, SPREAD_LOSS = 8, 0.003
CELLS_PER_FLOW, LEAST_COLUMNS = 2, 32
JUST_EXACT, NEARLY_ALL, MOST_OF_CELLS, SELDOM_LOST = 1.45, 0.93, 0.8, 0.1
SPREAD_SHARES = (0.5, 0.125, 0.03125)
LEAST_SPREAD, MOST_SPREAD, MANY_FLOWS = 2, 8, 20_000
LEAST_CELLS_PER_FLOW = 0.08
MUCH_LOST_PER_FLOW = 1.6
CROSSING, CROSSING_POWER = 0.62, 0.4
BESIDE_SAMPLES = 8
FOR_COUNTS = 5
WHOLE_SAMPLE = 8
SPREAD_SALT, ELEPHANT_SALT = 1 << 32, 1 << 33
BESIDE_COUNTERS = 8
FEW_CELLS, ELEPHANTS_SHARE, ELEPHANT_SHARES, ELEPHANT_SPREAD = 0.5, 10, (0.125, 0.015625), 4
LEAST_COUNTERS, HARDLY_LOST = 0.5, 0.2
USUAL_FLOW = 0.35
LEAST_SAMPLE_BYTES, FEW_BYTES = 512, 2
WHOLE_CROSSING, WHOLE_POWER, MOST_LOST_OF_WHOLE = 4.5, 0.75, 1.5
# The parts of three vectors of counters that take whole flows, and what their salts differ by.
WHOLE_ROWS = {FLOWS: 0, SPREAD: SPREAD_SALT, ELEPHANTS: ELEPHANT_SALT}
COUNTED_FLOW, BESIDE_WHOLE = 100, 16
FLOWS_PER_LARGE = 4
# The part of large flows above which those that lost nothing tell how many packets such flows lose.
FEW_LOSSLESS = 0.1
# Packets that a flow loses for which four counters are right: 0.45 % of 150.
USUALLY_LOST = 0.675
USUALLY_VARIED, USUALLY_APART, MEDIAN_DEVIATION, LEAST_VARIED = 0.5, 0.54, 0.6745, 8
# What packets' deviations are beside those of flows, in what a counter holds of strangers: there are many of them.
PACKETS_PART = 0.2
MOST_SLOPE = 0.2
CLOSE_TO_WHOLE = 1e-4
COUNTER_BITS, COUNTER_COUNT_BITS, COUNTER_DIGEST_BITS = 40, 20, 8
MOST_JOINT_FLOWS = 1_000_000
LEAST_JOINT_COUNTERS = 4
GROUPS_PER_FLOW = 8
SLOTS_PER_GROUP = 8
# The layouts for 45 plausible kinds of traffic have most of their parts in common: each is fitted once.
_fitted_once = lru_cache(maxsize=1024)


_ONE_CELL = LdsParameters(rows=1, columns=1)


class TooSmallError(ParameterError):
    """The memory holds not even the smallest sketch."""


@_fitted_once
def _cells(memory_bytes: int, one: Parameters, least: int) -> int:
    """How many times the memory holds the cells of `one`."""
    cells = memory_bytes * 8 // one.memory_bits
    if cells < least:
        raise TooSmallError(
            f"{memory_bytes} bytes are too few",
            where=one.kind,
            action=f"give at least {-(-least * one.memory_bits // 8)}",
        )
    return cells


def fit_lda(memory_bytes: int, *, salt: int = 0, lost: float = 0.0) -> LdaParameters:
    """The LDA that fills the memory, for a number of lost packets.

    >>> fit_lda(16384).rows
    170
    >>> fit_lda(16384, lost=1e6).banks
    10
    """
    for rarer in range(len(RARER) + 1):
        shares = LADDER + RARER[:rarer]
        rows = _cells(memory_bytes, LdaParameters(rows=1, shares=shares), 2)
        if lost * shares[-1] <= rows:
            break
    return LdaParameters(rows=rows, shares=shares, salt=salt)


def fit_blind(memory_bytes: int, *, salt: int = 0, lost: float = 0.0) -> LdaParameters:
    """The LDA beside a flow sketch: as large as asked for, and as much larger as its rarer banks need."""
    banks = fit_lda(memory_bytes, lost=lost).banks
    return fit_lda(memory_bytes * banks // len(LADDER), salt=salt, lost=lost)


def fit_lds(memory_bytes: int, *, flows: int, loss: float, salt: int = 0, joint: bool = False) -> LdsParameters:
    """The LDS that fills the memory; one decoded jointly needs whole flows more than it fears few losses."""
    columns = _cells(memory_bytes, LdsParameters(rows=LDS_ROWS, columns=1), 8)
    if loss < (SPREAD_LOSS if joint else LEAST_LOSS):
        return LdsParameters(rows=LDS_ROWS, columns=columns, salt=salt)
    shares = MUCH_LOSS_ROWS if loss >= MUCH_LOSS else LITTLE_LOSS_ROWS
    most = MOST_JOINT_SPREAD if joint else MOST_CELLS_PER_FLOW
    spread = max(1, min(columns // (2 * max(flows, 1)), columns // 4, most))
    return LdsParameters(rows=LDS_ROWS, columns=columns, spread=spread, shares=shares, salt=salt)


def fit_auto(
    memory_bytes: int,
    *,
    flows: int,
    loss: float,
    packets: int = 0,
    salt: int = 0,
    joint: bool = True,
    sample_bytes: int = 0,
    doubt: float = 1.0,
    exact_counts: bool = False,
    seen: SurveyedFlows | None = None,
) -> dict[str, Parameters]:
    """Share the memory among cells and samples by what the traffic is expected to be; `packets` 0 is unknown, `seen` is
    what a survey counted of each flow.

    Flows, loss and packets may be wrong by the factor `doubt`: then the layout is that which costs least in the worst
    case (`regret`). With `exact_counts` as many cells of whole flows as tell packets and losses exactly are part of it,
    if they take a fifth at most. A sample beside counters has at least `sample_bytes`.

    What is not decoded jointly has no counters: they say nothing of a single flow whose size is not known.

    >>> list(fit_auto(128_000, flows=1000, loss=0.0)), list(fit_auto(128_000, flows=1000, loss=0.2))
    (['flows'], ['samples'])
    """
    flows = max(flows, 1)
    cells = _cells(memory_bytes, _ONE_CELL, 4 * LDS_ROWS)
    if loss < LEAST_LOSS and cells / flows < LEAST_CELLS_PER_FLOW:
        return {SAMPLES: fit_sample(memory_bytes, flows=flows, salt=salt)}
    expected = Expected(flows, loss, packets or LARGE_FLOW * flows, seen)
    is_joint, is_known = joint and flows <= MOST_JOINT_FLOWS, packets > 0 and doubt <= 1
    if is_joint and is_known and (whole := _whole_flows(memory_bytes, expected, salt)) is not None:
        return whole
    if loss < LEAST_LOSS:
        return {FLOWS: _exact_cells(cells, salt)}
    if not is_joint:
        return _without_counters(memory_bytes, expected, salt)
    sample_bytes = max(sample_bytes, LEAST_SAMPLE_BYTES)
    if doubt <= 1:
        slots = fit_sample(memory_bytes, flows=flows, salt=salt).slots
        samples = expected.prefers_samples(cells, slots)
        return _decoded_jointly(memory_bytes, expected, salt, sample_bytes, samples=samples)
    cases = plausible_cases(Case(flows, loss, expected.packets / flows), doubt)
    least = round(JUST_EXACT * flows)
    least = least if exact_counts and FOR_COUNTS * least <= cells else 0
    layouts = [
        _decoded_jointly(memory_bytes, Expected.of(case), salt, sample_bytes, samples=samples, whole=least)
        for case in cases
        for samples in ((True,) if Expected.of(case).is_risky(cells) else (False, True))
    ]
    splits = [_split_of(parts) for parts in layouts]
    # Cells of whole flows also tell sizes and losses: where enough of them take little they are always there.
    needed = splits[0].cells if BESIDE_SAMPLES * splits[0].cells <= cells else 0
    kept = [n for n, split in enumerate(splits) if split.cells >= needed and split.sample]
    return layouts[kept[least_regret([splits[number] for number in kept], cases)]]


def _whole_flows(memory_bytes: int, expected: Expected, salt: int) -> dict[str, Parameters] | None:
    """Cells of whole flows for as many packets as a survey counted, and a small sample for flows that lose some; None
    where counters or samples are better.

    Each cell is as wide as all packets (and as many again, for copies) may need it. Where cells of nanoseconds are too
    few to be exact, flows have a counter in each of three vectors instead: microseconds are close enough then, and
    leave room for more of them.
    """
    most, lost = 2 * round(expected.packets), expected.lost_of_whole
    if lost > MOST_LOST_OF_WHOLE:
        return None
    fine = LdsParameters(rows=LDS_ROWS, columns=1, salt=salt)
    digest = COUNTER_DIGEST_BITS if expected.loss < LEAST_LOSS else fine.digest_bits
    fine = replace(
        fine,
        sum_bits=min(fine.sum_bits, _sum_bits(most, fine.max_delay_ns)),
        count_bits=min(fine.count_bits, most.bit_length()),
        digest_bits=digest,
    )
    columns = 8 * memory_bytes // fine.memory_bits
    enough = min(JUST_EXACT * math.exp(2.5 * lost), CELLS_PER_FLOW + 1)
    if LDS_ROWS * columns >= enough * expected.flows:
        return {FLOWS: replace(fine, columns=columns)} if expected.loss < LEAST_LOSS else None
    coarse = CounterVectorParameters(
        counters=1,
        per_flow=1,
        bits=_sum_bits(most, fine.max_delay_ns // 1000),
        count_bits=most.bit_length(),
        digest_bits=COUNTER_DIGEST_BITS,
        resolution_ns=1000,
    )
    parts: dict[str, Parameters] = {}
    if expected.loss >= LEAST_LOSS:
        aside = memory_bytes // BESIDE_WHOLE
        if aside < FEW_BYTES * LEAST_SAMPLE_BYTES:
            return None
        parts[SAMPLES] = fit_sample(aside, flows=expected.flows, salt=salt)
        memory_bytes -= aside
    counter = coarse.bits + coarse.count_bits + coarse.digest_bits
    each = (8 * memory_bytes // len(WHOLE_ROWS) - coarse.memory_bits) // counter + 1
    if len(WHOLE_ROWS) * each < WHOLE_CROSSING * lost**WHOLE_POWER * expected.flows:
        return None
    rows = {part: replace(coarse, counters=each, salt=salt ^ number) for part, number in WHOLE_ROWS.items()}
    return {**rows, **parts}


def _sum_bits(packets: int, longest: int) -> int:
    """Of a sum modulo a power of two: so many delays of up to the longest, of either sign, are told apart."""
    return (packets * longest).bit_length() + 1


def _split_of(parts: dict[str, Parameters]) -> Split:
    """What a layout has of each kind of part."""
    split = Split()
    for part in parts.values():
        if isinstance(part, CounterVectorParameters) and part.per_flow == 1:
            split = split._replace(cells=split.cells + part.counters)
        elif isinstance(part, CounterVectorParameters):
            split = split._replace(counters=part.counters, per_flow=part.per_flow)
        elif isinstance(part, SampleParameters):
            split = split._replace(sample=part.slots)
        elif isinstance(part, LdsParameters) and part.shares == (1.0,):
            split = split._replace(cells=part.rows * part.columns)
    return split


def _decoded_jointly(
    memory_bytes: int, expected: Expected, salt: int, sample_bytes: int, *, samples: bool, whole: int = 0
) -> dict[str, Parameters]:
    """The layout for traffic that is known: samples, or counters with a sample beside them; `whole` cells of whole
    flows at least."""
    cells = _cells(memory_bytes, _ONE_CELL, 1)
    flows, per_flow = expected.flows, cells / expected.flows
    parts: dict[str, Parameters] = {}
    exact = max(_exact_beside(cells - sample_bytes * cells // memory_bytes, expected), whole)
    if samples and exact and expected.sample_needs(memory_bytes, 1 - exact / cells):
        exact = 0
    if exact:
        few = exact == whole or exact <= JUST_EXACT * flows
        parts[FLOWS] = _exact_cells(exact, salt, LDS_ROWS - 1 if few else LDS_ROWS)
    left = 8 * memory_bytes - sum(part.memory_bits for part in parts.values())
    if samples or (left // 8 < FEW_BYTES * sample_bytes and not exact):
        return {**parts, SAMPLES: fit_sample(left // 8, flows=flows, salt=salt)}
    if per_flow < FEW_CELLS:
        # A sample of so little is none: cells that sample keep some of an elephant's clean, and answer it.
        sampled = _elephant_cells(cells // ELEPHANTS_SHARE, salt)
        bits = 8 * memory_bytes - sampled.memory_bits
        return {FLOWS: sampled, SPREAD: _counters(bits, expected.counters_per_flow(cells), salt)}
    sample = fit_sample(max(left // 8 // BESIDE_COUNTERS, sample_bytes), flows=flows, salt=salt)
    counters = _counters(left - sample.memory_bits, expected.counters_per_flow(cells), salt)
    parts[SPREAD if FLOWS in parts else FLOWS] = counters
    return {**parts, SAMPLES: sample}


@dataclass(frozen=True, eq=False)
class SurveyedFlows:
    """What a survey counted of each flow: its packets, and those that were lost (None where it saw a sample only).

    Of delays: how far a packet usually is from its flow's mean, over that, as a deviation (``varied``), by which power
    of its size that mean goes (``slope``), and how far flows' means are from their mean on average, over that
    (``apart``).
    """

    packets: Int64Array
    lost: Int64Array | None = None
    varied: float = USUALLY_VARIED
    slope: float = 0.0
    apart: float = USUALLY_APART

    def with_delays(self, flow: Int64Array, delay_ns: Int64Array) -> SurveyedFlows:
        """The same with what matched packets tell of delays. O(packets · log packets)."""
        size = np.bincount(flow)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(flow, delay_ns) / size
        told = np.flatnonzero((size >= LEAST_VARIED) & (mean > 0))
        if not len(told):
            return self
        off = np.abs(delay_ns - mean[flow])
        off = off[np.lexsort((off, flow))]
        # The median of flows' medians, which a few late packets do not move.
        middle = (np.cumsum(size) - size + size // 2)[told]
        varied = float(np.median(off[middle] / mean[told])) / MEDIAN_DEVIATION
        mean = mean[told]
        found = replace(self, varied=varied, apart=float(np.mean(np.abs(mean / mean.mean() - 1))))
        if np.ptp(size[told]) == 0:
            return found
        logs, means = np.log(size[told]), np.log(mean)
        logs -= logs.mean()
        return replace(found, slope=float(logs @ (means - means.mean())) / float(logs @ logs))


class Usual(NamedTuple):
    """Packets of a flow that counts, and those that are lost of them."""

    packets: float
    lost: float


@dataclass(frozen=True, eq=False)
class Expected:
    """The traffic that a memory is shared out for, and how far off flows' means are then.

    Where flows are small on average, most packets are of a few: the flows that ``count``. What is measured of counters
    and samples (docs/maths/auto.md) is with cells and losses for each of these.
    """

    flows: int
    loss: float
    packets: float
    seen: SurveyedFlows | None = None

    @classmethod
    def of(cls, case: Case) -> Expected:
        return cls(round(case.flows), case.loss, case.size * case.flows)

    @property
    def lost(self) -> float:
        """Lost packets per flow."""
        return self.loss * self.packets / self.flows

    @cached_property
    def lost_of_whole(self) -> float:
        """The same, or less where a few flows lose most: as many as would leave the same share of flows without loss,
        if all lost alike."""
        if self.seen is None or self.seen.lost is None or not self.lost:
            return self.lost
        lossless = float(np.mean((self.seen.lost == 0)[self._large]))
        return min(self.lost, -math.log(lossless)) if lossless > 0 else self.lost

    @cached_property
    def usual(self) -> Usual:
        """Packets of a flow that counts, and how many of these it loses, as the laws take them: fewer than all do on
        average where a few flows lose most, more where large ones do."""
        mean = self.packets / self.counted
        if self.seen is None:
            return Usual(mean, self.loss * mean)
        middle = float(np.median(self.seen.packets[self._large]))
        size = min(mean, middle)
        if self.seen.lost is None:
            return Usual(size, self.loss * size)
        lost = self.seen.lost[self._large]
        lossless = float(np.mean(lost == 0))
        of_middle = -math.log(lossless) if lossless > FEW_LOSSLESS else float(np.median(lost))
        return Usual(size, of_middle * size / middle)

    @property
    def _large(self) -> BoolArray:
        """The rows of flows that errors are counted of; all where none is large."""
        assert self.seen is not None
        large: BoolArray = self.seen.packets >= min(COUNTED_FLOW, int(self.seen.packets.max()))
        return large

    @property
    def count(self) -> float:
        """How many flows have most of the packets, by their mean size."""
        return self.flows * min(1.0, self.packets / (LARGE_FLOW * self.flows))

    @property
    def counted(self) -> float:
        """The same, or fewer where a survey saw few large ones."""
        if self.seen is None:
            return self.count
        return min(self.count, FLOWS_PER_LARGE * float(np.count_nonzero(self._large)))

    def prefers_samples(self, cells: int, slots: int) -> bool:
        """Whether samples are expected to be closer than counters, with memory for so many cells or slots."""
        per_flow = cells / self.counted
        samples = self.samples_error(per_flow) if self.seen is None else self.sampled_error(slots)
        return self.is_risky(cells) or samples <= self.counters_error(per_flow)

    def sampled_error(self, slots: int) -> float:
        """What half of the large flows' means are off by at most, in a sample of so many slots: sizes tell how much is
        kept of each, and nothing is off where all is."""
        assert self.seen is not None
        sizes = self.seen.packets.astype(np.float64)
        groups = sample_groups(slots, self.flows)
        group = np.random.default_rng(0).integers(0, groups, len(sizes))
        total = np.bincount(group, sizes, groups).astype(np.float64)
        share = np.minimum(_level(total, slots) / np.maximum(total, 1.0), 1.0)[group][self._large]
        large = sizes[self._large]
        usual = 0.29 * min(self.seen.varied / USUALLY_VARIED, 1.0)
        return float(np.median(usual * np.sqrt((1 - share) / np.maximum(share * large, 1e-9))))

    def sample_needs(self, memory_bytes: int, share: float) -> bool:
        """Whether a sample of all the memory keeps most large flows whole, and one of this share of it does not."""
        if self.seen is None:
            return False
        parts = (round(memory_bytes * share), memory_bytes)
        less, all_of_it = (self.sampled_error(fit_sample(part, flows=self.flows).slots) for part in parts)
        return all_of_it <= CLOSE_TO_WHOLE < less

    def is_risky(self, cells: int) -> bool:
        """Whether counters would be so few, and so many of them spoiled, that they mislead; or so few that no sample is
        beside them, which would tell that means go with sizes."""
        if self.seen is not None and cells / self.flows < FEW_CELLS and abs(self.seen.slope) > MOST_SLOPE:
            return True
        return cells / self.count < LEAST_COUNTERS and self.usual.lost > HARDLY_LOST

    def samples_error(self, per_flow: float) -> float:
        """What a sample's means of flows are off by, typically."""
        # Groups share slots out evenly: most flows are far smaller than the mean.
        share = min(per_flow * self.count / (USUAL_FLOW * self.packets), 1.0)
        return 0.29 * math.sqrt((1 - share) / per_flow)

    def counters_error(self, per_flow: float) -> float:
        """The same of counters."""
        size, lost = self.usual
        if self.seen is not None and self.seen.lost is not None:
            # Half of what spoils a flow's counters are strangers' packets, and these may lose more.
            lost = (lost + self._lost_by_strangers(per_flow)) / 2
        law = 0.065 * (lost / per_flow) ** 0.55 * (LARGE_FLOW / size) ** 0.25 * (1 + 1.3 / per_flow)
        if self.seen is not None:
            # What a counter holds of others is known by how far these are apart, and a little by how packets vary.
            apart = math.hypot(self.seen.apart, PACKETS_PART * self.seen.varied)
            law *= apart / math.hypot(USUALLY_APART, PACKETS_PART * USUALLY_VARIED)
        return math.hypot(law, CLOSE)

    def _lost_by_strangers(self, per_flow: float) -> float:
        """Packets that a usual flow would lose if all lost alike and spoiled as many counters as they do now: a flow
        spoils its own, however many packets it loses."""
        assert self.seen is not None
        assert self.seen.lost is not None
        own = self.counters_per_flow(round(per_flow * self.counted))
        now, alike = (float(np.sum(-np.expm1(-lost / own))) for lost in (self.seen.lost, self.loss * self.seen.packets))
        return self.loss * self.usual.packets * (now / alike if alike else 1.0)

    def counters_per_flow(self, cells: int) -> int:
        """As many as keep some of a flow's counters clean, and no more: each is shared."""
        most = 64 if self.flows <= MANY_FLOWS else 8
        wanted = 4 * (self.usual.lost / USUALLY_LOST) ** 0.7 * (cells / self.counted / 4) ** 0.35
        return round(min(max(float(wanted), 4.0), most))


def _exact_beside(cells: int, expected: Expected) -> int:
    """Cells of whole flows: two each where losses are few, or where that is little of all."""
    flows, per_flow = expected.flows, cells / expected.flows
    exact = max(LDS_ROWS * LEAST_COLUMNS, CELLS_PER_FLOW * flows)
    if BESIDE_SAMPLES * exact <= cells:
        return exact
    lost = expected.lost_of_whole
    if lost > MOST_LOST_OF_WHOLE or per_flow < WHOLE_CROSSING * lost**WHOLE_POWER:
        return 0
    if cells < (CELLS_PER_FLOW + 1) * flows or cells < exact:
        most = NEARLY_ALL if cells > flows else MOST_OF_CELLS
        return min(round(flows * JUST_EXACT * math.exp(2.5 * lost)), round(most * cells))
    return min(round(exact * math.exp(lost)), cells // 2)


def _level(packets: FloatArray, slots: int) -> float:
    """What each group of so many packets has of a sample's slots at most (`sketches.sample`)."""
    ordered = np.sort(packets)
    left = np.arange(len(ordered), 0, -1)
    # With groups up to one kept whole, the others share what is left.
    levels = (slots - np.append(0.0, np.cumsum(ordered)[:-1])) / left
    cut = np.flatnonzero(levels <= ordered)
    return float(levels[cut[0]]) if len(cut) else math.inf


def _without_counters(memory_bytes: int, expected: Expected, salt: int) -> dict[str, Parameters]:
    """Cells that are not decoded jointly, or of too many flows: exact ones and spread ones that sample, or samples."""
    flows, lost = expected.flows, expected.lost
    cells = _cells(memory_bytes, _ONE_CELL, 4 * LDS_ROWS)
    per_flow = cells / flows
    exact = min(cells, max(LDS_ROWS * LEAST_COLUMNS, CELLS_PER_FLOW * flows))
    crossing = max(LEAST_CELLS_PER_FLOW, CROSSING * lost**CROSSING_POWER)
    whole = lost > SELDOM_LOST and per_flow >= WHOLE_SAMPLE and expected.packets < cells * WHOLE_SAMPLE
    if lost > MUCH_LOST_PER_FLOW or per_flow < crossing or whole:
        if BESIDE_SAMPLES * exact > cells:
            return {SAMPLES: fit_sample(memory_bytes, flows=flows, salt=salt)}
        beside = _exact_cells(exact, salt)
        left = memory_bytes - -(-beside.memory_bits // 8)
        return {FLOWS: beside, SAMPLES: fit_sample(left, flows=flows, salt=salt)}
    if per_flow < CELLS_PER_FLOW + 1:
        most = NEARLY_ALL if lost < SELDOM_LOST and per_flow > 1 else MOST_OF_CELLS if lost < SELDOM_LOST else 0.5
        exact = min(round(flows * JUST_EXACT), round(most * cells))
    rows = LDS_ROWS if exact > JUST_EXACT * flows else LDS_ROWS - 1
    return {FLOWS: _exact_cells(exact, salt, rows), SPREAD: _spread_cells(cells - exact, flows, salt)}


def _elephant_cells(cells: int, salt: int) -> LdsParameters:
    columns = max(1, cells // len(ELEPHANT_SHARES))
    return LdsParameters(
        rows=len(ELEPHANT_SHARES),
        columns=columns,
        spread=min(ELEPHANT_SPREAD, columns),
        shares=ELEPHANT_SHARES,
        salt=salt ^ ELEPHANT_SALT,
    )


@_fitted_once
def _counters(bits: int, per_flow: int, salt: int) -> CounterVectorParameters:
    """As many counters as the bits hold.

    What is shared is not known to the nanosecond: sums in microseconds, and a digest of a byte, save a third of a cell.
    """
    one = CounterVectorParameters(
        counters=1,
        per_flow=per_flow,
        bits=COUNTER_BITS,
        count_bits=COUNTER_COUNT_BITS,
        digest_bits=COUNTER_DIGEST_BITS,
        resolution_ns=1000,
        salt=salt ^ SPREAD_SALT,
    )
    counter = one.bits + one.count_bits + one.digest_bits
    return replace(one, counters=max(1, (bits - one.memory_bits + counter) // counter))


@_fitted_once
def _exact_cells(cells: int, salt: int, rows: int = LDS_ROWS) -> LdsParameters:
    return LdsParameters(rows=rows, columns=max(1, cells // rows), salt=salt)


def _spread_cells(cells: int, flows: int, salt: int) -> LdsParameters:
    columns = max(1, cells // len(SPREAD_SHARES))
    most = LEAST_SPREAD if flows > MANY_FLOWS else MOST_SPREAD
    spread = min(columns, max(LEAST_SPREAD, min(most, round(1.5 * cells / flows))))
    return LdsParameters(
        rows=len(SPREAD_SHARES), columns=columns, spread=spread, shares=SPREAD_SHARES, salt=salt ^ SPREAD_SALT
    )


def fit_colate(memory_bytes: int, *, flows: int, salt: int = 0, joint: bool = False) -> CounterVectorParameters:
    """The counter vector that fills the memory; one decoded jointly has several counters per flow even if few."""
    one = CounterVectorParameters(counters=1, per_flow=1, count_bits=24)
    counter_bits = one.bits + one.count_bits
    _cells(memory_bytes, one, 64)
    counters = (memory_bytes * 8 - (one.memory_bits - counter_bits)) // counter_bits
    per_flow = max(LEAST_JOINT_COUNTERS if joint else 1, min(16, counters // (2 * max(flows, 1))))
    return CounterVectorParameters(counters=counters, per_flow=per_flow, count_bits=24, salt=salt)


@_fitted_once
def fit_sample(memory_bytes: int, *, flows: int, salt: int = 0) -> SampleParameters:
    """The coordinated sample that fills the memory.

    >>> fit_sample(128_000, flows=100).groups
    800
    """
    bits = memory_bytes * 8
    slots = MOST_SLOTS
    while slots > 1:
        fitted = SampleParameters(slots=slots, groups=sample_groups(slots, flows), salt=salt)
        if fitted.memory_bits <= bits:
            return fitted
        slots = min(slots - 1, slots * bits // fitted.memory_bits)
    raise TooSmallError(f"{memory_bytes} bytes are too few", where="sample", action="give at least 256")


def sample_groups(slots: int, flows: int) -> int:
    """Groups of a sample: enough for flows to have one each, nearly, and some slots in each."""
    return max(1, min(GROUPS_PER_FLOW * max(flows, 1), slots // SLOTS_PER_GROUP, 1 << 20))
