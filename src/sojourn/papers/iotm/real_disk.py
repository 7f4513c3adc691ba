"""Ten real processes that write to this machine's disk (IoTm, §IV-A), recorded by agents, answered by the query unit.

Two agents see the same operations: one as published (random j, the same hash functions in every epoch), one in turns
with a salt of each epoch's own. Each is asked over HTTP for every process's sum. The truth is the source's own count,
kept beside. Operations are the kernel's block tracepoint's where that can be had (root), else system calls.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.errors import SojournError
from sojourn.lab.disk_load import mounted_tracefs, writers
from sojourn.lab.fleet import Fleet, agent, query_unit
from sojourn.papers.claims import Claim
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.sources.disk_io import Method

__all__ = ["DiskRecording", "real_disk", "record_disk"]

EXPERIMENT = "real disk"
PROCESSES = 10
BUSIEST_PER_SECOND = 150.0
PUBLISHED, TURNS = "published", "turns"
WITHIN = 0.05


@dataclass(frozen=True, eq=False)
class DiskRecording:
    """Each process's true number of operations, and what was answered, by (node, method)."""

    method: Method
    names: list[str]
    truth: FloatArray
    answers: Mapping[tuple[str, str], FloatArray]
    covered: FloatArray

    def errors(self, node: str, method: str) -> FloatArray:
        found: FloatArray = np.abs(self.answers[node, method] - self.truth) / self.truth
        return found

    @property
    def equal_share_errors(self) -> FloatArray:
        found: FloatArray = np.abs(self.truth.mean() - self.truth) / self.truth
        return found


def record_disk(seconds: float, *, epoch: str) -> DiskRecording:
    """Run ten writers, two agents and a query unit for a while."""
    rates = [BUSIEST_PER_SECOND / (1 + i) for i in range(PROCESSES)]
    with ExitStack() as stack:
        method: Method = "tracepoint" if stack.enter_context(mounted_tracefs()) else "system_calls"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sojourn-fleet-")))
        load = stack.enter_context(writers(rates, seconds))
        fleet = stack.enter_context(query_unit(folder))
        stream = {
            "metric": "disk_io",
            "method": method,
            "epoch": epoch,
            "instances": [load.pattern],
            "buckets": 20,
            "per_instance": 5,
            "bits": 16,
            "count_bits": 0,
        }
        with (
            agent(fleet, PUBLISHED, {"disk": {**stream, "spreading": "random", "salted": False}}),
            agent(fleet, TURNS, {"disk": {**stream, "spreading": "round-robin"}}),
        ):
            counted = load.write(method)
        if len(counted) < PROCESSES:
            raise SojournError(f"{len(counted)} of {PROCESSES} processes reached a disk", where=EXPERIMENT)
        return _answered(fleet, method, counted)


def _answered(fleet: Fleet, method: Method, counted: Mapping[str, int]) -> DiskRecording:
    names = sorted(counted, key=lambda name: -counted[name])
    truth = np.array([counted[name] for name in names], np.float64)
    answers, covered = {}, np.empty(0)
    for node in (PUBLISHED, TURNS):
        for how in ("literal", "joint"):
            found = {
                str(answer["instance"]): answer
                for answer in fleet.ask(metric="disk_io", node=node, method=how, top=1000)
            }
            answers[node, how] = np.array([float(found[name]["value"]) for name in names])  # type: ignore[arg-type]
            if (node, how) == (TURNS, "joint"):
                low, high = (np.array([float(found[n][end]) for n in names]) for end in ("low", "high"))  # type: ignore[arg-type]
                covered = ((low <= truth) & (truth <= high)).astype(np.float64)
    return DiskRecording(method, names, truth, answers, covered)


def real_disk(scale: Scale) -> Outcome:
    """A minute of disk IO, or the paper's ten."""
    seconds, epoch = (50.0, "10s") if scale is Scale.SMALL else (600.0, "60s")
    try:
        recording = record_disk(seconds, epoch=epoch)
    except (SojournError, OSError) as error:
        return Outcome([Claim(experiment=EXPERIMENT, quantity=f"left out: {error}"[:200], unit="")])
    return Outcome(_claims(recording, epoch), [_figure(recording)])


def _claims(recording: DiskRecording, epoch: str) -> list[Claim]:
    literal = recording.errors(PUBLISHED, "literal")
    equal = recording.equal_share_errors
    how = "block tracepoint" if recording.method == "tracepoint" else "system calls"
    claims = [
        Claim(
            experiment=EXPERIMENT,
            quantity=f"processes within 5 %, {how}, epochs of {epoch}; joint: {shown}",
            unit="%",
            paper=100.0,
            literal=100 * float((literal <= WITHIN).mean()),
            joint=100 * float((recording.errors(node, "joint") <= WITHIN).mean()),
            baseline=100 * float((equal <= WITHIN).mean()),
            reproduced=bool((literal <= WITHIN).all()),
        )
        for node, shown in ((TURNS, "turns"), (PUBLISHED, "random j, one salt"))
    ]
    claims += [
        Claim(
            experiment=EXPERIMENT,
            quantity=f"{what} error; joint: {shown}",
            unit="%",
            literal=100 * float(statistic(literal)),
            joint=100 * float(statistic(recording.errors(node, "joint"))),
            baseline=100 * float(statistic(equal)),
        )
        for what, statistic in (("median", np.median), ("largest", np.max))
        for node, shown in ((TURNS, "turns"), (PUBLISHED, "random j, one salt"))
    ]
    covered = Claim(
        experiment=EXPERIMENT,
        quantity="95 % intervals that cover, of ten; joint: turns",
        unit="%",
        joint=100 * float(recording.covered.mean()),
    )
    return [*claims, covered]


def _figure(recording: DiskRecording) -> Figure:
    x = list(range(1, PROCESSES + 1))
    lines = [
        Line("counted", x, recording.truth.tolist(), "paper"),
        Line("as published", x, recording.answers[PUBLISHED, "literal"].tolist(), "literal"),
        Line("joint, random j", x, recording.answers[PUBLISHED, "joint"].tolist(), "joint"),
        Line("joint, turns", x, recording.answers[TURNS, "joint"].tolist(), "joint"),
        Line("equal share", x, [float(recording.truth.mean())] * PROCESSES, "baseline"),
    ]
    panels = {"ten processes": lines}
    return Figure(name="real-disk", x_label="process", y_label="operations", panels=panels)
