"""What trials come to: `auto` beside the best of its peers, coverage by class of sizes, and what more memory does.

Errors are means over seeds. Coverage is pooled over seeds: a class of a world in a memory is judged once it has
`LEAST_FLOWS` intervals, and fails where 90 % or more would be this rare (`SIGNIFICANT`) by the binomial distribution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from bench.auto.trial import AUTO, CLASSES, FLOOR, PEERS, Trial
from sojourn.core.units import format_bytes

GOOD, MOST = 1.15, 1.5
LEAST_COVERED, TOO_WIDE, SIGNIFICANT, LEAST_FLOWS = 0.9, 0.98, 1e-3, 500
RISES, CHANGED = 1.05, 1.1


class Place(NamedTuple):
    """A world in a memory."""

    world: str
    memory: int

    def __str__(self) -> str:
        return f"{self.world}, {format_bytes(self.memory)}"


@dataclass
class Pooled:
    """Counts of flows added up, by their names."""

    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    widths: list[float] = field(default_factory=list)

    def add(self, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            if name != "width":
                self.counts[name] += value
        if figures["wide"] and "width" in figures:
            self.widths.append(figures["width"])

    def share(self, part: str, whole: str) -> float:
        return self.counts[part] / self.counts[whole] if self.counts[whole] else float("nan")

    @property
    def covered(self) -> float:
        return self.share("held", "wide")

    @property
    def is_judged(self) -> bool:
        return self.counts["wide"] >= LEAST_FLOWS

    @property
    def fails(self) -> bool:
        """Whether significantly fewer intervals hold the truth than 90 %."""
        return bool(binom.cdf(self.counts["held"], self.counts["wide"], LEAST_COVERED) < SIGNIFICANT)

    @property
    def is_wide(self) -> bool:
        """Whether intervals hold the truth too often, although they are not as good as exact."""
        return self.covered > TOO_WIDE and float(np.median(self.widths)) > FLOOR


class Summary:
    """Trials by world and memory."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self.trials: dict[Place, list[Trial]] = defaultdict(list)
        for trial in trials:
            self.trials[Place(trial["world"], trial["memory"])].append(trial)

    def error(self, place: Place, method: str) -> float:
        """The mean over seeds."""
        return float(np.nanmean([trial["methods"][method]["error"] for trial in self.trials[place]]))

    def ratio(self, place: Place) -> float:
        """Auto's error over that of the best of its peers."""
        return self.error(place, AUTO) / min(self.error(place, peer) for peer in PEERS)

    def coverage(self) -> dict[tuple[Place, str], Pooled]:
        """Auto's intervals by place and class of sizes."""
        found: dict[tuple[Place, str], Pooled] = defaultdict(Pooled)
        for place, trials in self.trials.items():
            for trial in trials:
                for name, figures in trial["methods"][AUTO]["classes"].items():
                    found[place, name].add(figures)
        return found

    @property
    def memories(self) -> list[int]:
        return sorted({place.memory for place in self.trials})

    def lines(self, worst: int = 10) -> list[str]:
        """The summary, with so many of the worst of everything by name."""
        if not self.trials:
            return ["no trials"]
        parts: tuple[Callable[[int], list[str]], ...] = (
            self._ratios,
            self._coverage,
            self._rises,
            self._counts,
            self._seconds,
        )
        return [line for part in parts for line in (*part(worst), "")][:-1]

    def _ratios(self, worst: int) -> list[str]:
        ratios = {place: self.ratio(place) for place in self.trials}
        runs = sum(map(len, self.trials.values()))
        lines = [f"auto / best of peers: {runs:,} runs, {len(ratios)} places (world × memory)"]
        for memory in (*self.memories, 0):
            here = np.array([ratio for place, ratio in ratios.items() if memory in (0, place.memory)])
            name = format_bytes(memory) if memory else "all"
            lines.append(
                f"  {name:>8}: ≤ {GOOD} in {np.sum(here <= GOOD)} of {len(here)} ({np.mean(here <= GOOD):.0%}), "
                f"> {MOST} in {np.sum(here > MOST)}, median {np.median(here):.2f}, worst {here.max():.2f}"
            )
        if not worst:
            return lines
        lines += ["", f"  {'ratio':>6} {'auto':>8} " + " ".join(f"{peer:>12}" for peer in PEERS) + "  place: recorded"]
        for place in sorted(ratios, key=lambda one: -ratios[one])[:worst]:
            peers = " ".join(f"{100 * self.error(place, peer):12.2f}" for peer in PEERS)
            parts = " ".join(f"{name} {size // 1024}K" for name, size in self.trials[place][0]["plan"].items())
            lines.append(f"  {ratios[place]:6.2f} {100 * self.error(place, AUTO):8.2f} {peers}  {place}: {parts}")
        return lines

    def _coverage(self, worst: int) -> list[str]:
        found = self.coverage()
        judged = {key: pooled for key, pooled in found.items() if pooled.is_judged}
        failed = {key: pooled for key, pooled in judged.items() if pooled.fails}
        few = [pooled for key, pooled in found.items() if key not in judged and pooled.counts["wide"]]
        wide = {key: pooled for key, pooled in judged.items() if pooled.is_wide}
        lines = [
            f"coverage of auto's intervals: {len(failed)} of {len(judged)} cells (place × class, {LEAST_FLOWS} flows "
            f"or more) below {LEAST_COVERED:.0%}, {len(wide)} above {TOO_WIDE:.0%}; "
            f"{sum(pooled.fails for pooled in few)} of {len(few)} smaller cells below"
        ]
        for name in CLASSES:
            total = Pooled()
            for (_, one), pooled in found.items():
                if one == name:
                    total.add(pooled.counts)
            cells = [pooled for (_, one), pooled in judged.items() if one == name]
            lines.append(
                f"  {name:>12} packets: {total.covered:.1%} of {total.counts['wide']:,.0f} intervals hold; "
                f"{sum(cell.fails for cell in cells)} of {len(cells)} cells below, "
                f"{sum(cell.is_wide for cell in cells)} above; without width {total.counts['sharp']:,.0f}, "
                f"wrong {total.share('wrong', 'sharp'):.2%}; no answer "
                f"{1 - (total.counts['wide'] + total.counts['sharp']) / max(total.counts['flows'], 1):.1%}"
            )
        for title, cells_of, order in (("lowest", failed, 1), ("widest", wide, -1)):
            for place, name in sorted(cells_of, key=lambda key: order * cells_of[key].covered)[:worst]:
                cell = cells_of[place, name]
                lines.append(
                    f"  {title} {cell.covered:6.1%} of {cell.counts['wide']:6,.0f} flows of {name}, "
                    f"width {np.median(cell.widths):.1%}: {place}"
                )
        return lines

    def _rises(self, worst: int) -> list[str]:
        """Where more memory makes the error larger."""
        rises: dict[tuple[Place, Place], float] = {}
        places = sorted(self.trials)
        for before, after in pairwise(places):
            if before.world == after.world:
                ratio = self.error(after, AUTO) / self.error(before, AUTO)
                if ratio > RISES:
                    rises[before, after] = ratio
        lines = [f"more memory, a larger error (by {RISES - 1:.0%} or more): {len(rises)} times"]
        for before, after in sorted(rises, key=lambda pair: -rises[pair])[:worst]:
            lines.append(
                f"  {100 * self.error(before, AUTO):.2f} % with {format_bytes(before.memory)}, "
                f"{100 * self.error(after, AUTO):.2f} % with {format_bytes(after.memory)}: {before.world}"
            )
        return lines

    def _counts(self, _worst: int) -> list[str]:
        """Sizes and losses: how many are known, exact, and held by an interval that has a width."""
        lines = ["auto's sizes and losses of flows"]
        for memory in self.memories:
            total = Pooled()
            for (place, _name), pooled in self.coverage().items():
                if place.memory == memory:
                    total.add(pooled.counts)
            said = []
            for name, title in (("packets", "sizes"), ("lost", "losses")):
                text = f"{title} known {total.share(f'{name}_known', 'flows'):.1%}"
                text += f", exact {total.share(f'{name}_exact', 'flows'):.1%}"
                if total.counts[f"{name}_wide"]:
                    text += f", held {total.share(f'{name}_held', f'{name}_wide'):.1%} of intervals"
                said.append(text)
            lines.append(f"  {format_bytes(memory):>8}: {'; '.join(said)}")
        return lines

    def _seconds(self, worst: int) -> list[str]:
        slowest = {
            place: max(trial["methods"][AUTO]["seconds"] for trial in trials) for place, trials in self.trials.items()
        }
        lines = [f"auto's decoding: median {np.median(list(slowest.values())):.2f} s, the slowest"]
        order = sorted(slowest, key=lambda one: -slowest[one])
        lines += [f"  {slowest[place]:.1f} s: {place}" for place in order[: min(worst, 3)]]
        return lines if worst else [f"{lines[0]} {max(slowest.values()):.1f} s"]


def changes(before: Sequence[Trial], after: Sequence[Trial], worst: int = 10) -> list[str]:
    """What auto does otherwise in the trials that both files have."""
    keys = {_key(trial) for trial in before} & {_key(trial) for trial in after}
    old, new = (Summary(trial for trial in trials if _key(trial) in keys) for trials in (before, after))
    if not keys:
        return ["no trial is in both files"]
    ratio = {place: new.error(place, AUTO) / old.error(place, AUTO) for place in new.trials}
    better, worse = (sum(one) for one in zip(*((r < 1 / CHANGED, r > CHANGED) for r in ratio.values()), strict=True))
    counts = [[sum(one.ratio(p) > limit for p in one.trials) for one in (old, new)] for limit in (GOOD, MOST)]
    cells = [{key for key, pooled in one.coverage().items() if pooled.is_judged and pooled.fails} for one in (old, new)]
    typical = float(np.exp(np.mean(np.log(list(ratio.values())))))
    lines = [
        f"in {len(keys):,} runs of both files, {len(ratio)} places: error × {typical:.3f} (geometric mean), "
        f"{better} better and {worse} worse by {CHANGED - 1:.0%} or more",
        *(
            f"  above {limit} × the best of peers: {a} → {b}"
            for limit, (a, b) in zip((GOOD, MOST), counts, strict=True)
        ),
        f"  cells with too little coverage: {len(cells[0])} → {len(cells[1])}, new {len(cells[1] - cells[0])}",
    ]
    order = sorted(ratio, key=lambda place: ratio[place])
    for title, places in (("better", order[:worst]), ("worse", order[::-1][:worst])):
        for place in places:
            if not 1 / CHANGED <= ratio[place] <= CHANGED and (ratio[place] < 1) == (title == "better"):
                figures = f"{100 * old.error(place, AUTO):.2f} % → {100 * new.error(place, AUTO):.2f} %"
                lines.append(f"  {title}: {figures} (now {new.ratio(place):.2f} × the best of peers), {place}")
    for place, name in sorted(cells[1] - cells[0])[:worst]:
        lines.append(f"  coverage now {new.coverage()[place, name].covered:.1%} of {name}: {place}")
    return lines


def _key(trial: Trial) -> tuple[str, int, int]:
    return trial["world"], trial["memory"], trial["seed"]
