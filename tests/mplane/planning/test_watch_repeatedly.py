"""Looking again and again: failures after the first look are told once in a row, and time ends it."""

from __future__ import annotations

from itertools import islice

import pytest

from sojourn.core.errors import ServerError, SojournError
from sojourn.mplane.planning.live_topology import Patience, repeatedly


def looking(answers: list[int | str]) -> tuple[list[SojournError], list[int]]:
    """What is told and what is seen, where a word stands for a failure."""
    told: list[SojournError] = []
    remaining = iter(answers)

    def look() -> int:
        answer = next(remaining)
        if isinstance(answer, str):
            raise ServerError(answer)
        return answer

    wanted = sum(isinstance(answer, int) for answer in answers)
    return told, list(islice(repeatedly(look, Patience(1), told.append), wanted))


def test_every_look_is_given_and_failures_in_a_row_are_told_once() -> None:
    told, seen = looking([1, "away", "away", 2, 3, "away again", 4])
    assert seen == [1, 2, 3, 4]
    assert [str(error) for error in told] == ["away", "away again"]


def test_the_first_look_has_to_succeed() -> None:
    with pytest.raises(ServerError, match="away"):
        looking(["away", 1])


def test_it_ends_after_its_time_and_looks_once_at_least() -> None:
    assert list(repeatedly(lambda: 1, Patience(10**18, 1))) == [1]


def test_whoever_has_had_enough_ends_it_and_hears_of_no_failure_then() -> None:
    told: list[SojournError] = []
    patience = Patience(1)
    looks = 0

    def look() -> int:
        nonlocal looks
        looks += 1
        if looks == 3:
            patience.stop()
            raise ServerError("interrupted")
        return looks

    assert list(repeatedly(look, patience, told.append)) == [1, 2]
    assert told == []
