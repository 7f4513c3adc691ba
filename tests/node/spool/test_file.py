"""What a spool knows of the run before: ended in order, or killed, and what that lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sojourn.core.units import format_instant
from sojourn.node.spool.file import StreamState
from sojourn.node.spool.spool import Spool
from spool_worlds import EVERYTHING, SALTS, SIZE, epoch, full_disk, without_pauses

SECOND = 10**9
NOW = 1_700_000_000 * SECOND


class Clock:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.now_ns = NOW

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)


def started(directory: Path, clock: Callable[[], int]) -> Spool:
    return Spool(directory, limit_bytes=1 << 20, clock=clock)


def killed(spool: Spool, directory: Path) -> Path:
    """What a kill leaves of a spool: its files as they are now."""
    copy = directory.with_name(f"{directory.name}-after")
    shutil.copytree(directory, copy)
    spool.close()
    return copy


def values(spool: Spool) -> dict[int, int]:
    return {e.sequence: int(e.epoch.sketch.column("sum").sum()) for e in spool.oldest(**EVERYTHING)}


def test_a_first_start_and_one_after_an_end_in_order_have_lost_nothing(tmp_path: Path) -> None:
    clock = Clock()
    with closing(started(tmp_path, clock)) as spool:
        assert spool.notices() == []
        spool.begin_stream("disk", 0)
        spool.end_stream("disk", [epoch(0)])
        spool.end()
    with closing(started(tmp_path, clock)) as again:
        (line,) = again.notices()
        assert "ended in order" in line
        assert line.endswith("nothing was lost")


def test_after_a_kill_each_stream_has_lost_what_came_after_its_last_checkpoint(tmp_path: Path) -> None:
    clock = Clock()
    spool = started(tmp_path / "spool", clock)
    for name in ("cpu", "disk", "idle"):
        spool.begin_stream(name, 0)
    clock.wait(5)
    spool.keep(StreamState(name, (), [epoch(0, name)], clock()) for name in ("cpu", "disk"))
    clock.wait(2)
    spool.keep([StreamState("disk", [epoch(0, "disk", times=3)], [epoch(1, "disk", times=2)], clock())])
    spool.end_stream("idle", [])
    clock.wait(1)
    spool.mark_sent(spool.oldest(1, most_bytes=1))
    left = killed(spool, tmp_path / "spool")
    clock.wait(100)
    with closing(started(left, clock)) as again:
        cpu, disk = again.notices()
        for line, since in ((cpu, 5), (disk, 7)):
            assert f"from {format_instant(NOW + since * SECOND)} (its last checkpoint)" in line
            assert f"after {format_instant(NOW + 8 * SECOND)} (the last sign of life)" in line
            assert f"before this start at {format_instant(NOW + 108 * SECOND)}" in line
        assert "stream cpu lost" in cpu
        assert "stream disk lost" in disk
        assert {e.key: e.recorded for e in again.oldest(**EVERYTHING)} == {
            ("cpu", 0): 1,
            ("disk", 0): 3,
            ("disk", 1): 2,
        }
        assert again.next_number("disk") > 2


def test_a_clock_set_back_before_the_kill_loses_no_checkpoint(tmp_path: Path) -> None:
    """The epoch that the future has, and the one of now with a higher number, are both open."""
    clock = Clock()
    spool = started(tmp_path / "spool", clock)
    spool.begin_stream("disk", 0)
    spool.keep([StreamState("disk", (), [epoch(5, times=4)], clock())])
    clock.wait(-3600)
    spool.keep([StreamState("disk", (), [epoch(6, times=2), epoch(5, times=4)], clock())])
    left = killed(spool, tmp_path / "spool")
    with closing(started(left, clock)) as again:
        assert values(again) == {5: 40, 6: 20}
        assert f"from {format_instant(NOW - 3600 * SECOND)}" in again.notices()[0]


def test_a_checkpoint_is_replaced_by_the_epoch_it_was_of(tmp_path: Path) -> None:
    with closing(started(tmp_path, Clock())) as spool:
        spool.begin_stream("disk", 0)
        spool.keep([StreamState("disk", (), [epoch(0)], 1)])
        assert len(spool) == 0, "what is open is not sent"
        assert spool.oldest(**EVERYTHING) == []
        spool.keep([StreamState("disk", [epoch(0, times=5)], [], 2)])
        assert values(spool) == {0: 50}


def test_a_loss_is_reported_again_if_nobody_lived_to_record_after_it(tmp_path: Path) -> None:
    clock = Clock()
    spool = started(tmp_path / "spool", clock)
    spool.begin_stream("disk", 0)
    left = killed(spool, tmp_path / "spool")
    first = started(left, clock)
    (said,) = first.notices()
    once_more = killed(first, left)
    clock.wait(9)
    second = started(once_more, clock)
    assert second.notices() == [said]
    second.begin_stream("disk", second.next_number("disk"))
    second.end_stream("disk", [])
    second.end()
    second.close()
    with closing(started(once_more, clock)) as third:
        (line,) = third.notices()
        assert "nothing was lost" in line


def test_a_kill_before_anything_was_recorded_has_lost_nothing(tmp_path: Path) -> None:
    clock = Clock()
    spool = started(tmp_path / "spool", clock)
    spool.begin_stream("disk", 0)
    spool.end_stream("disk", [])
    left = killed(spool, tmp_path / "spool")
    with closing(started(left, clock)) as again:
        (line,) = again.notices()
        assert "killed while it recorded nothing" in line
        assert "nothing was lost" in line


def test_a_checkpoint_that_the_disk_refused_does_not_count(tmp_path: Path) -> None:
    clock = Clock()
    spool = started(tmp_path / "spool", clock)
    spool.begin_stream("disk", 0)
    with full_disk():
        clock.wait(5)
        spool.keep([StreamState("disk", (), [epoch(0)], clock())])
    left = killed(spool, tmp_path / "spool")
    with closing(started(left, clock)) as again:
        assert f"from {format_instant(NOW)} (its last checkpoint)" in again.notices()[0]


def test_a_disk_that_refused_the_start_and_takes_the_rest_later_reports_the_last_runs_loss_then(tmp_path: Path) -> None:
    clock = Clock()
    spool = started(tmp_path / "spool", clock)
    spool.begin_stream("disk", 0)
    spool.keep([StreamState("disk", (), [epoch(0)], clock())])
    left = killed(spool, tmp_path / "spool")
    with full_disk():
        late = started(left, clock)
        late.begin_stream("disk", number := late.next_number("disk"))
        assert number > 10**12, "above all that it cannot read"
        late.keep([StreamState("disk", [epoch(number)], (), clock())])
    clock.wait(60)
    without_pauses(late)
    late.keep([StreamState("disk", [], [epoch(number + 1)], clock())])
    assert values(late) == {0: 10, number: 10}
    assert f"before this start at {format_instant(NOW)}" in late.notices()[-1]
    after = killed(late, left)
    with closing(started(after, clock)) as again:
        assert f"from {format_instant(NOW + 60 * SECOND)} (its last checkpoint)" in again.notices()[-1]
        assert values(again) == {0: 10, number: 10, number + 1: 10}


def test_what_is_in_memory_is_not_merged_with_what_the_disk_has_a_checkpoint_of(tmp_path: Path) -> None:
    """The merged epoch may be sent, and the checkpoint be taken up after a kill: it would count twice."""
    with closing(Spool(tmp_path, limit_bytes=4 * SIZE)) as spool:
        spool.begin_stream("disk", 0)
        spool.keep([StreamState("disk", (), [epoch(0)], 1)])
        with full_disk():
            spool.keep([StreamState("disk", [epoch(0, times=2)], [], 2)])
            for number in range(SALTS, 20 * SALTS, SALTS):
                spool.put(epoch(number))
            assert spool.merged > 0
            assert (spool.unwritten[0].sequence, spool.unwritten[0].recorded) == (0, 2)


def test_what_a_stream_left_open_without_closing_it_is_sent(tmp_path: Path) -> None:
    with closing(started(tmp_path, Clock())) as spool:
        spool.begin_stream("disk", 0)
        spool.keep([StreamState("disk", (), [epoch(0, times=2)], 1)])
        spool.end_stream("disk", [])
        assert values(spool) == {0: 20}


def test_a_number_is_never_given_to_two_epochs(tmp_path: Path) -> None:
    """While the disk refused, numbers were given and sent that it knows nothing of."""
    clock = Clock()
    spool = started(tmp_path / "spool", clock)
    spool.begin_stream("disk", 7)
    spool.keep([StreamState("disk", (), [epoch(7)], 1)])
    with full_disk():
        spool.keep([StreamState("disk", [epoch(7, times=2)], [], 2)])
        for number in (8, 9):
            spool.put(epoch(number))
        spool.remove(spool.mark_sent(spool.oldest(**EVERYTHING)))
        assert spool.next_number("disk") >= 8
    left = killed(spool, tmp_path / "spool")
    with closing(started(left, clock)) as again:
        assert again.next_number("disk") > 9
        (taken_up,) = again.oldest(**EVERYTHING)
        assert (taken_up.sequence, taken_up.resumed, taken_up.in_doubt) == (7, True, True)
