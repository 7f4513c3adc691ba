"""What is answered about a segment while parts of its fleet are late, away or full, beside captures that are not."""

from __future__ import annotations

import itertools
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chain_worlds import SECOND, watched
from machine import live_marks
from sojourn.core.errors import ServerError
from sojourn.lab.chain.load import Load, run_load
from sojourn.lab.chain.network import three_machines
from sojourn.lab.namespaces import Bottleneck
from sojourn.segments.result import SegmentResult

EPOCH_NS = 2 * SECOND
NARROW = Bottleneck(8_000_000, queue_bytes=60_000)
pytestmark = [pytest.mark.long, *live_marks("NETWORK NAMESPACES ARE NOT TESTED: they need root")]


@contextmanager
def meanwhile(*happening: tuple[float, Callable[[], None]]) -> Iterator[None]:
    """Have things happen after so many seconds each; all have when the context ends."""
    timers = [threading.Timer(*one) for one in happening]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.join()


def longest_gap_ns(result: SegmentResult) -> int:
    """Between two stretches that are covered; those of two plans may be some packets apart."""
    spans = itertools.pairwise(result.covered)
    return max((after["from_ns"] - before["to_ns"] for before, after in spans), default=0)


def test_an_end_that_starts_late_is_answered_from_then_on_and_nothing_before(tmp_path: Path) -> None:
    begun: list[int] = []
    with (
        three_machines(NARROW) as chain,
        watched(chain, tmp_path, segments=("path",), epoch_ns=EPOCH_NS, absent=("sink",)) as watch,
    ):

        def start() -> None:
            begun.append(time.time_ns())
            watch.start_agent(chain.sink)

        with meanwhile((20, start)):
            run_load(chain, Load(seconds=45))
        result = watch.settle("path", begun[0] + 15 * SECOND)
        with pytest.raises(ServerError, match="no run between two common markers is complete in the range"):
            watch.ask("path", to_ns=begun[0])
        assert [dump.finish() for dump in watch.dumps] == [0, 0, 0, 0]
        watch.truth("path").check(result)
    assert begun[0] <= result.covered[0]["from_ns"]
    assert longest_gap_ns(result) < EPOCH_NS
    assert result.aggregate["sent"] > 1000


def limit_files(pid: int, size: int) -> None:
    """Have the kernel refuse what a process writes beyond some bytes of any file, as a full disk does."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("overflow", ["merged", "lost"])
def test_a_spool_that_overflows_while_the_query_unit_is_away_costs_resolution_or_a_gap(
    overflow: str, tmp_path: Path
) -> None:
    """A full spool merges epochs; if its disk takes nothing either, some are lost: nothing is answered about those."""
    with (
        three_machines(NARROW) as chain,
        watched(
            chain,
            tmp_path,
            segments=("path",),
            epoch_ns=EPOCH_NS,
            settings={"sink": {"spool_limit": "40KB"}},
        ) as watch,
    ):
        away: list[int] = []

        def leave() -> None:
            watch.fleet.stop()
            away.append(time.time_ns())
            if overflow == "lost":
                limit_files(watch.agents["sink"].pid, 1)

        def come_back() -> None:
            away.append(time.time_ns())
            limit_files(watch.agents["sink"].pid, resource.RLIM_INFINITY)
            watch.fleet.start()

        with meanwhile((12, leave), (37, come_back)):
            run_load(chain, Load(seconds=60))
        result = watch.settle("path", away[1] + 10 * SECOND)
        series = watch.ask("path", interval_ns=EPOCH_NS)
        assert [dump.finish() for dump in watch.dumps] == [0, 0, 0, 0]
        watch.truth("path").check(result)
        said = (tmp_path / "sink" / "log").read_text()
    assert "the spool is full" in said
    assert ("is lost: the disk refuses it" in said) == (overflow == "lost")
    assert result.covered[0]["from_ns"] < away[0]
    lengths = [part["end_ns"] - part["start_ns"] for part in series.intervals]
    assert max(lengths) > 3 * min(lengths)
    assert (longest_gap_ns(result) > EPOCH_NS) == (overflow == "lost")
