"""Estimates, units and errors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import ParameterError, SketchFullError, SojournError, UsageError, WireError
from sojourn.core.estimates import Estimate, Reason, Unanswered
from sojourn.core.units import format_bytes, format_duration, parse_bytes, parse_duration, parse_number


def test_an_interval_holds_its_value() -> None:
    with pytest.raises(ParameterError, match="misses its value"):
        Estimate(5.0, 6.0, 7.0, 1, "m")
    with pytest.raises(ParameterError, match="cannot be nan"):
        Estimate(math.nan, 0, 1, 1, "m")


def test_an_unknown_width_is_unbounded() -> None:
    estimate = Estimate.around(3.0, math.nan, samples=1, method="m")
    assert (estimate.low, estimate.high) == (-math.inf, math.inf)
    assert estimate.contains(1e300)


def test_knowing_a_bound_moves_the_interval_only_up() -> None:
    estimate = Estimate(-2.0, -5.0, 4.0, 1, "m").not_below(0)
    assert (estimate.value, estimate.low, estimate.high) == (0, 0, 4)


def test_no_answer_is_false_and_has_a_reason() -> None:
    answer = Unanswered(Reason.NO_USABLE_CELLS)
    assert not answer
    assert answer.reason == "no usable cells"


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("1", 10**9), ("10 ms", 10**7), ("2.5us", 2500), ("1h", 3600 * 10**9), ("30d", 30 * 86_400 * 10**9), ("7ns", 7)],
)
def test_durations(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("1MB", 10**6), ("16KiB", 16384), ("1.5 kb", 1500)])
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("20k", 20_000), ("1.5 M", 1.5e6), ("2e6", 2e6), ("-3", -3), ("1e3k", 1e6)]
)
def test_numbers(text: str, number: float) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["", "k", "nan", "inf", "1e400", "1e308k", "3 kb", "--3"])
def test_what_is_no_number_is_said_with_an_example(text: str) -> None:
    with pytest.raises(ParameterError, match="is not a number; write it like 20000, 20k"):
        parse_number(text)


@pytest.mark.parametrize("text", ["", "MB", "1 parsec", "1e9", "--3", "1.5.2s", "9" * 5000 + "x", "9" * 5000 + "s"])
def test_bad_quantities_name_the_units(text: str) -> None:
    with pytest.raises(ParameterError, match="write a number and one of"):
        parse_duration(text)


@given(st.integers(0, 10**18))
def test_nanoseconds_survive_parsing_exactly(nanoseconds: int) -> None:
    assert parse_duration(f"{nanoseconds}ns") == nanoseconds


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 µs"), (-2.5e6, "-2.50 ms"), (123e9, "123 s")],
)
def test_durations_for_people(value: float, text: str) -> None:
    assert format_duration(value) == text


def test_other_formats_for_people() -> None:
    assert format_duration(math.inf) == "∞"
    assert format_bytes(3 * 2**20) == "3.00 MiB"


def test_errors_say_what_where_and_what_to_do() -> None:
    error = WireError("counters are short", where="epoch.counters", action="send it again")
    assert str(error) == "epoch.counters: counters are short; send it again"
    assert isinstance(error, SojournError)
    assert (UsageError("x").exit_code, SketchFullError("x").exit_code) == (2, 1)
