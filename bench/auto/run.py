"""The command: which worlds, memories and seeds; trials in processes; results as JSON lines that can be resumed.

A file of results belongs to one state of the estimators: what is in it is not run again. ``--peers`` takes the figures
of the peers from such a file of an earlier state, which leaves only `auto` to run: four times as quick.
``--guess-flows`` and ``--guess-loss`` plan by a guess instead of a survey, right (1) or wrong, into results of
their own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.auto.summary import Summary, changes
from bench.auto.trial import AUTO, SKETCHES, Figures, Guess, Task, Trial, run
from bench.auto.worlds import FIRST_SEED, QUICK, worlds_of
from sojourn.core.errors import InputError, SojournError
from sojourn.core.executors.executor import open_executor
from sojourn.core.units import parse_bytes

MEMORIES = ("32KB", "128KB", "1MB", "8MB")
QUICK_MEMORIES = ("128KB", "1MB")
SALTS, QUICK_SALTS = 5, 2


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m bench auto", description=__doc__)
    add = found.add_argument
    add("--set", choices=("look", "once"), default="look", help="worlds to look at, or those to look at once")
    add("--world", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    add("--memory", action="append", default=[], metavar="SIZE", help=f"default {', '.join(MEMORIES)}")
    add("--salts", type=int, help=f"draws of each world, with other hashes each; default {SALTS}")
    add("--quick", action="store_true", help="a dozen worlds, two memories, two salts: two minutes")
    add("--results", type=Path, metavar="FILE", help="JSON lines to add to; what is there is not run again")
    add("--peers", type=Path, metavar="FILE", help="take the peers' figures from these results where they are there")
    add("--against", type=Path, metavar="FILE", help="also print what changed since these results")
    add("--guess-flows", type=float, metavar="FACTOR", help="plan by a guess of the flows that is wrong by this factor")
    add("--guess-loss", type=float, metavar="FACTOR", help="the same of the loss; a guess knows no number of packets")
    add("--workers", type=int, default=2)
    add("--worst", type=int, default=10, help="how many of the worst to name; 0 prints totals only")
    add("--no-run", action="store_true", help="only tell of what is in the results")
    add(
        "--oracle",
        action="store_true",
        help="print what linear estimators could tell at best in a few worlds, and stop",
    )
    add("--list", action="store_true", help="print the worlds of the set and stop")
    return found


def main(arguments: Sequence[str]) -> None:
    options = parser().parse_args(arguments)
    try:
        judge(options)
    except SojournError as error:
        raise SystemExit(f"error: {error}") from None


def judge(options: argparse.Namespace) -> None:
    """Run what is not in the results yet, and print the summary."""
    worlds = worlds_of(options.set, options.world or (QUICK if options.quick else ()))
    if options.list:
        for world in worlds:
            print(world)
        return
    memories = [parse_bytes(size) for size in options.memory or (QUICK_MEMORIES if options.quick else MEMORIES)]
    salts = options.salts or (QUICK_SALTS if options.quick else SALTS)
    seeds = range(FIRST_SEED[options.set], FIRST_SEED[options.set] + salts)
    if options.oracle:
        from bench.auto.oracle import WORLDS, table

        for line in table(worlds_of(options.set, options.world or WORLDS), memories, seeds):
            print(line, flush=True)
        return
    guess = None
    if options.guess_flows is not None or options.guess_loss is not None:
        guess = Guess(options.guess_flows or 1.0, options.guess_loss or 1.0)
    done = {_key(trial): trial for trial in read(options.results)}
    wanted = [(world.name, seed, memory) for seed in seeds for world in worlds for memory in memories]
    tasks = [
        Task(world, seed, left, guess)
        for seed in seeds  # outermost: a run that is interrupted has seen all worlds
        for world in worlds
        if not options.no_run
        if (left := [memory for memory in memories if (world.name, seed, memory) not in done])
    ]
    peers = {_key(trial): trial["methods"] for trial in read(options.peers)}
    done |= {_key(trial): trial for trial in _run_all(tasks, peers, options.results, options.workers)}
    trials = [done[key] for key in wanted if key in done]
    print("\n".join(Summary(trials).lines(options.worst)))
    if options.against is not None:
        print("\n" + "\n".join(changes(read(options.against), trials, options.worst)))


def read(path: Path | None) -> list[Trial]:
    """The trials of a file; none where there is no file yet."""
    if path is None or not path.exists():
        return []
    trials: list[Trial] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            trials.append(json.loads(line))
        except ValueError:
            raise InputError(f"line {number} is no JSON", where=str(path), action="remove it") from None
    return trials


Key = tuple[str, int, int]


def _key(trial: Trial) -> Key:
    return trial["world"], trial["seed"], trial["memory"]


def _run_all(
    tasks: list[Task], peers: dict[Key, dict[str, Figures]], results: Path | None, workers: int
) -> list[Trial]:
    """Run what is left, write each trial as it is known, and tell on stderr how far it is."""
    found: list[Trial] = []
    start = time.monotonic()
    with open_executor(workers) as executor:
        for number, trials in enumerate(executor.map(partial(_run, peers=peers), tasks), 1):
            found += trials
            if results is not None:
                with results.open("a") as file:
                    file.writelines(json.dumps(trial) + "\n" for trial in trials)
            spent = time.monotonic() - start
            left = spent / number * (len(tasks) - number)
            print(
                f"\r{number} of {len(tasks)}, {spent:.0f} s, about {left:.0f} s left  ",
                end="" if number < len(tasks) else "\n",
                file=sys.stderr,
                flush=True,
            )
    return found


def _run(task: Task, peers: dict[Key, dict[str, Figures]]) -> list[Trial]:
    known = [peers.get((task.world.name, task.seed, memory)) for memory in task.memories]
    trials = run(task, [AUTO] if all(known) else list(SKETCHES))
    for trial, methods in zip(trials, known, strict=True):
        if methods is not None:
            trial["methods"] = {**methods, AUTO: trial["methods"][AUTO]}
    return trials
