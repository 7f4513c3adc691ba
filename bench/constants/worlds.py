"""What constants of the estimators are judged in: a handful of `bench auto`'s worlds, and two of bucket arrays.

Figures of a world: the median relative error (of flows with 100 packets or more), and shares, of which none should fall
far from what it is by default: delays, sizes and losses that are inside their intervals, losses that are named exactly.
Worlds are drawn once, and recorded once unless the layout changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import numpy as np

from bench.auto.trial import AUTO, Drawn, Guess, decoded, figures_of, recorded
from bench.auto.worlds import worlds_of
from sojourn.core.estimates import Answer, Estimate
from sojourn.core.units import parse_bytes
from sojourn.estimation.buckets.joint import estimate_sums_jointly
from sojourn.estimation.buckets.rtt import estimate_round_trips
from sojourn.lab.metrics import DiskWorld, MessageWorld, disk_world, message_world
from sojourn.papers.iotm.rtt_buckets import RttRecorder, rtt_parameters
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sketches.sketch import AnySketch

Shares = dict[str, float]
# Kinds of layout and decoding: a dense system, cells of whole flows that are too few, counters under one distribution
# and under a mixture, samples of delays with a shape that models do not know, a guess in place of a survey.
PLACES: dict[str, tuple[str, str, Guess | None]] = {
    "few flows": ("few flows, 2 % lost", "32KB", None),
    "slow elephants": ("slow elephants", "32KB", None),
    "x10, 1 %": ("x10, 1 % lost", "128KB", None),
    "bimodal": ("bimodal, 1 % lost", "128KB", None),
    "alike": ("alike, 5 % lost", "32KB", None),
    "guessed": ("x10, 5 % lost", "128KB", Guess(flows=3.0)),
}
SEED, BUCKET_SEEDS = 0, range(8)
ERROR = "error"


@cache
def _drawn(name: str) -> Drawn:
    world, _, guess = PLACES[name]
    return Drawn.of(worlds_of("look", [world])[0], SEED, guess)


Place = tuple[str, str]  # a world, and what is recorded there
_ENDS: dict[Place, tuple[AnySketch, AnySketch]] = {}
_PLANNED: dict[Place, Shares] = {}


def try_place(name: str, kept: dict[Place, Shares]) -> Shares:
    """What `auto` comes to in a world, with the constants as they are now; `kept` has what plans came to."""
    drawn = _drawn(name)
    plan = drawn.plan(AUTO, parse_bytes(PLACES[name][1]), SEED)
    place = name, repr(plan.stream)
    if place not in _ENDS:
        _ENDS[place] = recorded(plan, drawn.traffic)
    if place in kept:
        return kept[place]
    figures = figures_of(drawn, *decoded(plan, drawn.traffic, _ENDS[place]))
    sums: Shares = {}
    for one in figures["classes"].values():
        sums = {field: sums.get(field, 0.0) + number for field, number in one.items()}
    found = {ERROR: figures["error"], "exact losses": sums["lost_exact"] / sums["flows"]}
    for share, held, wide in (
        ("delays", "held", "wide"),
        ("sizes", "packets_held", "packets_wide"),
        ("losses", "lost_held", "lost_wide"),
    ):
        found[share] = sums.get(held, 0.0) / sums[wide] if sums.get(wide) else 1.0
    kept[place] = found
    return found


@cache
def _disks(seed: int) -> DiskWorld:
    parameters = BucketArrayParameters(buckets=20, per_instance=5, spreading="random")
    return disk_world(seed, parameters, sizes="lognormal", processes=20, epochs=6, burst=0.5)


def try_disks() -> Shares:
    """Sums of processes that share buckets, some of them not listed in every second world."""
    answers: list[tuple[Answer, float]] = []
    for seed in BUCKET_SEEDS:
        world = _disks(seed)
        listed = slice(seed % 2, None)
        found = estimate_sums_jointly(world.epochs, world.ids[listed], unit="operations")
        answers += zip(found, world.total[listed].tolist(), strict=True)
    return _of_answers(answers)


@cache
def _messages(seed: int) -> tuple[MessageWorld, list[Any]]:
    world = message_world(seed, minutes=4, jitter=0.35, means="lognormal")
    recorder = RttRecorder(rtt_parameters(20, 5), epoch_ns=60 * 10**9, salt_of=partial(_salt, seed))
    return world, recorder.record(world.sent, world.acknowledged) + recorder.finish()


def try_messages() -> Shares:
    """Round trips of flows that share buckets."""
    answers: list[tuple[Answer, float]] = []
    for seed in BUCKET_SEEDS[:2]:
        world, epochs = _messages(seed)
        answers += zip(estimate_round_trips(epochs, world.ids), world.mean_ns.tolist(), strict=True)
    return _of_answers(answers)


def _salt(seed: int, slot: int) -> int:
    return 7919 * slot + seed


def _of_answers(answers: Iterable[tuple[Answer, float]]) -> Shares:
    """An answer that is not given is off by all of it."""
    pairs = list(answers)
    errors = [abs(one.value / truth - 1) if isinstance(one, Estimate) else 1.0 for one, truth in pairs]
    held = [one.contains(truth) for one, truth in pairs if isinstance(one, Estimate)]
    return {ERROR: float(np.median(errors)), "delays": float(np.mean(held)) if held else 0.0}


def try_all(about: str) -> dict[str, Shares]:
    """The figures of every world that tells of constants of `flows`, of their `layout` alone, or of `buckets`."""
    if about == "buckets":
        return {"disks": try_disks(), "messages": try_messages()}
    return {name: try_place(name, _PLANNED if about == "layout" else {}) for name in PLACES}
