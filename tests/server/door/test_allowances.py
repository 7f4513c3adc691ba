"""What callers have used of the limits, counted by several processes as if they were one."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from sojourn.server.door.allowances import RATE_ROWS, SET_ROWS, Allowances, SharedAllowances
from sojourn.server.door.limits import Limits, RateLimiter

LIMITS = Limits(requests_per_second=1e-6, burst=500, failures_per_second=1e-6, failure_burst=3)
OTHER = """
import fcntl, sys
from sojourn.server.door.allowances import SharedAllowances
from sojourn.server.door.limits import Limits
descriptor = int(sys.argv[1])
its = SharedAllowances(2, descriptor).at(1, Limits(requests_per_second=1e-6, burst=500))
print("ready", flush=True)
sys.stdin.readline()
print(sum(its.requests.wait_seconds("caller") == 0 for _ in range(400)), flush=True)
its.running.add("caller", 7)
its.buffered.add("caller", 1000)
sys.stdin.readline()
fcntl.lockf(descriptor, fcntl.LOCK_EX)
print("holds the lock", flush=True)
sys.stdin.readline()
"""


def test_processes_share_rates_and_tallies_and_a_killed_one_keeps_nothing() -> None:
    shared = SharedAllowances(2)
    ours = shared.at(0, LIMITS)
    command = [sys.executable, "-c", OTHER, str(shared.descriptor)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, pass_fds=(shared.descriptor,), **pipes) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("go\n")
        other.stdin.flush()
        allowed = sum(ours.requests.wait_seconds("caller") == 0 for _ in range(400))
        assert allowed + int(other.stdout.readline()) == LIMITS.burst
        # Only now: whoever is still counting would wait for the lock for ever.
        other.stdin.write("lock\n")
        other.stdin.flush()
        assert other.stdout.readline() == "holds the lock\n"
        other.kill()
    ours.running.add("caller", 1)
    assert (ours.running.of("caller"), ours.running.of("other"), ours.buffered.total()) == (8, 0, 1000)
    shared.clear(1)
    assert (ours.running.of("caller"), ours.running.total(), ours.buffered.total()) == (1, 1, 0)


def test_shared_rates_are_those_of_one_process() -> None:
    """The same callers at the same times, by a clock that both are given."""
    now = [0.0]
    limits = Limits(requests_per_second=2.0, burst=5)
    model = RateLimiter(2.0, 5, callers=100, clock=lambda: now[0])
    shared = SharedAllowances(1).at(0, limits).requests
    shared._clock = lambda: now[0]  # type: ignore[attr-defined]
    chance = random.Random(1)
    for _ in range(2000):
        now[0] += chance.expovariate(5.0)
        caller = f"caller {chance.randrange(4)}"
        assert shared.wait_seconds(caller) == pytest.approx(model.wait_seconds(caller))
        if chance.random() < 0.1:
            shared.give_back(caller)
            model.give_back(caller)


def test_more_callers_than_there_is_room_for_are_forgotten_from_the_oldest() -> None:
    rates = SharedAllowances(1).at(0, LIMITS).failures
    for _ in range(LIMITS.failure_burst):
        assert rates.wait_seconds("guesser") == 0
    for number in range(RATE_ROWS // SET_ROWS):
        rates.wait_seconds(f"one of many {number}")
    assert rates.wait_seconds("guesser") > 0


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_tally_forgets_callers_that_have_nothing_under_way(kind: str) -> None:
    allowances = Allowances.own(LIMITS) if kind == "own" else SharedAllowances(1).at(0, LIMITS)
    tally = allowances.buffered
    for number in range(20_000):
        tally.add(f"token {number}", 5)
        tally.add(f"token {number}", -5)
    tally.add("token 1", 3)
    assert (tally.of("token 1"), tally.of("token 2"), tally.total()) == (3, 0, 3)
