"""How frames of `sojourn top` look: order, what fits, what is not known, and names that mean harm."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import pytest

from sojourn.cli.top.frame import TREND, Frame, Sort
from sojourn.cli.top.screen import View

NAN = math.nan
SHORT = {"src_ip": "10.0.0.1", "src_port": 80, "dest_ip": "10.0.0.2", "dest_port": 4711, "protocol": "tcp"}
LONG = {"src_ip": "2001:db8:1234:5678::1", "src_port": 1, "dest_ip": "2001:db8::2", "dest_port": 2, "protocol": "udp"}
HOSTILE = {"src_ip": "\x1b[2J[bold]x", "dest_ip": None, "protocol": None}


class StillSource:
    """A source that has nothing new."""

    title = "left → right"
    delays = "delay"
    sorts = (Sort.DELAY, Sort.P99, Sort.LOSS, Sort.RATE)

    def frames(self) -> Generator[Frame, None, None]:
        yield from ()

    def stop(self) -> None:
        """Nothing runs."""


def frame_of(*rows: tuple[dict, float, float, float, float], notes: tuple[str, ...] = ()) -> Frame:
    """Flows with their names, rate, mean, p99 and loss."""
    columns = [np.array([row[k] for row in rows], np.float64) for k in (1, 2, 3, 4)]
    names = ("packets_per_second", "mean_ns", "p99_ns", "loss")
    named = [row[0] for row in rows]
    return Frame(
        0,
        10**9,
        np.arange(len(rows), dtype=np.uint64),
        dict(zip(names, columns, strict=True)),
        named.__getitem__,
        {"packets_per_second": 3.0, "mean_ns": NAN, "p99_ns": None, "loss": 0.5},
        notes,
    )


def shown(view: View, *frames: Frame, width: int | None = None, height: int | None = None) -> list[str]:
    view.history.frames.extend(frames)
    return ["".join(text for text, _style in line).rstrip() for line in view.lines(width, height)]


THREE = frame_of((SHORT, 100, 2e6, 9e6, 0), (LONG, 900, 5e6, 6e6, 0.25), (SHORT, 500, NAN, NAN, 1))


def test_before_the_first_frame_it_says_that_it_measures() -> None:
    assert shown(View(StillSource(), Sort.DELAY)) == ["left → right: measuring, the first numbers are on their way"]


@pytest.mark.parametrize(
    ("sort", "ids"), [(Sort.DELAY, [1, 0, 2]), (Sort.P99, [0, 1, 2]), (Sort.LOSS, [2, 1, 0]), (Sort.RATE, [1, 2, 0])]
)
def test_flows_are_sorted_and_those_without_a_number_come_last(sort: Sort, ids: list[int]) -> None:
    assert THREE.order(sort).tolist() == ids
    assert THREE.order(sort, 2).tolist() == ids[:2]


def test_what_is_not_known_is_left_out_or_null() -> None:
    lines = shown(View(StillSource(), Sort.LOSS), THREE)
    assert lines[1] == "3/s packets, loss 50.00%"
    assert "trend" not in lines[3]
    assert [row["mean_ns"] for row in THREE.rows(THREE.order(Sort.DELAY))] == [5_000_000, 2_000_000, None]


def test_keys_change_the_order_and_only_q_quits() -> None:
    view = View(StillSource(), Sort.DELAY)
    assert [view.press(key) for key in ("l", "x", "R", "q")] == [False, False, False, True]
    assert view.sort is Sort.RATE


def test_trends_are_as_wide_as_the_history_and_follow_the_flow() -> None:
    view = View(StillSource(), Sort.RATE)
    later = frame_of((SHORT, 50, 1, 1, 0), (LONG, 900, 1, 1, 0), (SHORT, 0, 1, 1, 0))
    lines = shown(view, *[THREE] * TREND, later)
    assert len(view.history.frames) == TREND
    assert any("█" * (TREND - 1) + "▄" in line for line in lines if "4711" in line)
    assert any("█" * (TREND - 1) + "▁" in line for line in lines if "4711" in line)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_names_are_shortened_and_what_is_sorted_by_stays(width: int) -> None:
    lines = shown(View(StillSource(), Sort.P99), *[THREE] * 3, width=width)
    assert "▼ p99" in lines[3]
    assert max(map(len, lines[3:])) <= max(width, 32)
    assert all("ms" in line for line in lines[4:6])


def test_only_as_many_flows_are_shown_as_the_screen_holds() -> None:
    many = frame_of(*[(SHORT, n, n, n, 0) for n in range(50)], notes=("a note of many words " * 10,))
    lines = shown(View(StillSource(), Sort.DELAY), many, width=80, height=20)
    assert len(lines) == 20
    assert lines[-3].startswith("! a note of many words")
    limited = shown(View(StillSource(), Sort.DELAY, limit=5), many)
    assert sum(" > " in line for line in limited) == 5
    assert "… and 45 flows more" in limited


def test_names_cannot_write_on_the_terminal() -> None:
    lines = shown(View(StillSource(), Sort.DELAY), frame_of((HOSTILE, 1, 1, 1, 0), notes=("\x1b[31mred",)))
    assert not any("\x1b" in line for line in lines)
    assert any("\\x1b[2J[bold]x > ?" in line for line in lines)
