"""How often tomography's 95 % intervals hold the true delay, and how wide they are: held-out worlds and real traces."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bench.tomography_worlds import HELD_OUT, HELD_OUT_SEEDS, RECORDED, RECORDED_NAMES, World, recorded, simulated
from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.tomography.delays.posterior import intervals, uncertain_visits

PAGE = Path(__file__).resolve().parents[1] / "docs" / "maths" / "tomography.md"
NOTE = "Three networks each, with seeds of their own that nothing was fitted on; delays that are known left out."
ROUNDING_NS = 1_000
NS_PER_MS = 1e6
THIRDS = 3


def judged(world: World) -> dict[str, FloatArray]:
    """Of every uncertain delay: whether its interval holds it, its widths in ms, and what it is grouped by."""
    trace, bounds = world.trace, world.bounds
    answer = intervals(trace, bounds, world.arrival_ns)
    visit = np.flatnonzero(uncertain_visits(trace, bounds))
    visit = visit[(world.truth_ns[visit] >= 0) & (world.truth_ns[visit + 1] >= 0)]
    delay = world.truth_ns[visit + 1] - world.truth_ns[visit]
    low, high = answer.low_ns[visit], answer.high_ns[visit]
    visits_at = np.bincount(trace.node[trace.is_visit], minlength=int(trace.node.max()) + 1)
    return {
        "held": ((delay >= low - ROUNDING_NS) & (delay <= high + ROUNDING_NS)).astype(float),
        "below": (delay < low - ROUNDING_NS).astype(float),
        "width": (high - low) / NS_PER_MS,
        "bounds": (bounds.most_ns - bounds.least_ns)[visit] / NS_PER_MS,
        "hops": (np.diff(trace.start)[trace.owner[visit]] - 1).astype(float),
        "load": visits_at[trace.node[visit]].astype(float),
    }


def thirds(values: FloatArray) -> Iterable[BoolArray]:
    """The lowest, middle and highest third."""
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return (rank * THIRDS // len(values) == part for part in range(THIRDS))


def shares(held: FloatArray, parts: Iterable[BoolArray]) -> str:
    return " / ".join(f"{100 * held[part].mean():.0f}" if part.any() else "–" for part in parts)


def row(name: str, worlds: Iterable[World]) -> str:
    answers = [judged(world) for world in worlds]
    found = {key: np.concatenate([answer[key] for answer in answers]) for key in answers[0]}
    held, hops = found["held"], found["hops"]
    alone = [float(answer["held"].mean()) for answer in answers]
    cells = (
        name,
        f"{len(held):,}",
        f"{100 * held.mean():.1f}",
        f"{100 * min(alone):.1f}–{100 * max(alone):.1f}" if len(alone) > 1 else "",
        f"{100 * found['below'].mean():.1f} / {100 * (1 - held.mean() - found['below'].mean()):.1f}",
        f"{found['width'].mean():.1f}",
        f"{found['bounds'].mean():.1f}",
        f"{found['width'].sum() / found['bounds'].sum():.2f}",
        shares(held, thirds(found["bounds"])),
        shares(held, [hops == 2, (hops > 2) & (hops < 6), hops > 5]),
        shares(held, thirds(found["load"])),
    )
    return f"| {' | '.join(cells)} |"


def table() -> list[str]:
    """The figures as a Markdown table."""
    lines = [
        "| world | delays | held | each | missed below / above | width | bounds | ratio "
        "| by bounds | by hops | by load |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, (network, without_sum) in HELD_OUT.items():
        lines.append(row(name, [simulated(network, seed, without_sum) for seed in HELD_OUT_SEEDS[name]]))
    if RECORDED.is_dir():
        for name in RECORDED_NAMES:
            lines.append(row(f"CTP {name[1:4]} nodes, whole", recorded(name)))
            lines.append(row(f"CTP {name[1:4]} nodes, eight parts", recorded(name, 8)))
    return lines
