"""What an objective requires of a statistic: a limit in units, or a limit to its change against an earlier time.

::

    mean < 100ms          p99 < 40ms          loss < 0.1%
    rate < 500/s          rate < 10MB/s       rate < 50%        (of times, such as CPU: of one processor)
    mean < +2ms against 7d                    (now, less what it was seven days ago)

``>`` asks for more than the limit instead. The limit itself is still on the good side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.units import format_bytes, format_duration, parse_bytes, parse_duration, parse_number

Stat = Literal["mean", "rate", "p50", "p90", "p95", "p99", "p999", "loss"]
LimitUnit = Literal["ns", "bytes", "share", "number"]
STATS: tuple[str, ...] = get_args(Stat)
EXAMPLES = "'mean < 100ms', 'p99 < 40ms', 'loss < 0.1%', 'rate < 500/s' or 'mean < +2ms against 7d'"
_TEXT = re.compile(
    r"\s*(?P<stat>[a-z0-9]+)\s*(?P<sign>[<>])\s*(?P<limit>[+-]?[0-9.]+(?:e[+-]?[0-9]+)?)\s*(?P<unit>[a-zµ%]*)"
    r"\s*(?P<each>/\s*s)?(?:\s+against\s+(?P<against>[0-9.]+\s*[a-zµ]+))?\s*",
    re.IGNORECASE,
)
_TIMES = {"d": 86_400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_SIZE_UNITS = ("b", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib")
_TIME_UNITS = ("ns", "us", "µs", "ms", "s", "min", "h", "d")
MOST_TEXT = 200
MOST_LIMIT = 2.0**63  # nothing that is measured is more, and a text of it stays short


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A statistic and its limit: in ns, bytes, a share or a plain number, of a rate each second.

    With ``above`` the good side lies above the limit. ``against_ns`` ago is what a change is counted from.
    """

    stat: Stat
    limit: float
    unit: LimitUnit
    above: bool = False
    against_ns: int | None = None

    def __post_init__(self) -> None:
        where = f"condition on {self.stat[:20]}"
        if self.stat not in STATS:
            raise UsageError("is no statistic", where=where, action=f"use one of {', '.join(STATS)}")
        if self.stat == "loss" and self.unit != "share":
            raise UsageError("loss is a share", where=where, action="write 'loss < 0.1%'")
        if self.stat not in ("loss", "rate") and self.unit == "share":
            what = f"the {self.stat} of values is no share"
            raise UsageError(what, where=where, action="give a time, a size or a number, such as 100ms")
        if not abs(self.limit) <= MOST_LIMIT:
            raise UsageError("is more than can be measured", where=where, action="give at most 9.2e18 of the unit")
        if self.against_ns is None and self.limit < 0:
            raise UsageError("a limit below 0 is never met", where=where, action="give 0 or more")
        if self.against_ns is not None and (self.against_ns <= 0 or self.stat == "rate"):
            what = "changes are those of means, percentiles and losses, against an earlier time"
            raise UsageError(what, where=where, action="write 'mean < +2ms against 7d'")

    @property
    def is_change(self) -> bool:
        return self.against_ns is not None

    def amount(self, value: float) -> str:
        """A value of the statistic, for people."""
        sign = "+" if self.is_change and value >= 0 else ""
        each = "/s" if self.stat == "rate" and self.unit != "share" else ""
        if self.unit == "share":
            return f"{sign}{value * 100:.3g} %"
        if self.unit == "number":
            return f"{sign}{value:,.4g}{each}"
        return f"{sign}{format_duration(value) if self.unit == 'ns' else format_bytes(value)}{each}"

    def __str__(self) -> str:
        """The text that `parse_condition` reads, to the last digit."""
        sign = "+" if self.is_change and self.limit >= 0 else ""
        each = "/s" if self.stat == "rate" and self.unit != "share" else ""
        if self.unit == "share":
            text = f"{_percent(self.limit)}%"
        elif self.unit == "ns":
            text = _exact(self.limit)
        else:
            text = f"{_digits(self.limit)}{'B' if self.unit == 'bytes' else ''}"
        against = "" if self.against_ns is None else f" against {duration_text(self.against_ns)}"
        return f"{self.stat} {'>' if self.above else '<'} {sign}{text}{each}{against}"


def parse_condition(text: str, *, where: str = "condition") -> Condition:
    """A condition from its text.

    >>> parse_condition("p99 < 40ms").limit, str(parse_condition("mean < +2 ms against 7d"))
    (40000000.0, 'mean < +2ms against 7d')
    """
    found = _TEXT.fullmatch(text) if len(text) <= MOST_TEXT else None
    if found is None:
        raise UsageError(f"{text[:60]!r} is no condition", where=where, action=f"write {EXAMPLES}")
    stat, number, unit = found["stat"].lower(), found["limit"], found["unit"].lower()
    against = found["against"]
    if stat not in STATS:
        what = f"{stat[:20]!r} is no statistic"
        raise UsageError(what, where=f"{where} {text[:60]!r}", action=f"use one of {', '.join(STATS)}")
    if number[0] in "+-" and against is None:
        what = "a change needs the time that it is counted from"
        raise UsageError(what, where=f"{where} {text[:60]!r}", action="write 'mean < +2ms against 7d'")
    if bool(found["each"]) != (stat == "rate" and unit != "%"):
        what = "a rate, and nothing else, is of a second"
        raise UsageError(what, where=f"{where} {text[:60]!r}", action="write 'rate < 500/s', or 'mean < 100ms'")
    try:
        limit, kind = _limit(number, unit)
        ago = None if against is None else parse_duration(against)
        return Condition(stat=stat, limit=limit, unit=kind, above=found["sign"] == ">", against_ns=ago)  # type: ignore[arg-type]
    except (ParameterError, UsageError) as error:
        raise UsageError(error.what, where=f"{where} {text[:60]!r}", action=error.action) from None


def _limit(number: str, unit: str) -> tuple[float, LimitUnit]:
    if unit == "%":
        return _share(number), "share"
    if unit in _TIME_UNITS:
        return float(parse_duration(number + unit)), "ns"
    if unit in _SIZE_UNITS:
        return float(parse_bytes(number + unit)), "bytes"
    if unit in ("", "k", "m", "g"):
        return parse_number(number + unit), "number"
    raise ParameterError(f"{unit[:20]!r} is no unit", action="use ns, us, ms, s, min, h, d, B, KB, MB, GB, % or none")


def _share(percent: str) -> float:
    """A share from its percentage; an exponent is never written out, however large it is."""
    try:
        return float(Decimal(percent).scaleb(-2))
    except ArithmeticError:
        raise ParameterError(f"{percent[:40]!r} is not a percentage", action="write it like 0.1%") from None


def _percent(share: float) -> str:
    """The shortest text of a percentage that `_share` reads as the share again."""
    exact = Decimal(repr(share)).scaleb(2).normalize()
    text = _digits(float(exact))
    return text if _share(text) == share else str(exact)


def _digits(number: float) -> str:
    """A number's shortest decimal text that a float of it keeps."""
    return str(int(number)) if number.is_integer() else repr(number)


def _exact(ns: float) -> str:
    """A time in the largest unit that it is a whole number of."""
    if not ns or not float(ns).is_integer():
        return f"{_digits(float(ns))}ns"
    whole = int(ns)
    unit = next(unit for unit, size in _TIMES.items() if whole % size == 0)
    return f"{whole // _TIMES[unit]}{'min' if unit == 'm' else unit}"


def duration_text(ns: int) -> str:
    """A time as it is written in a table, to the nanosecond.

    >>> duration_text(60 * 10**9), duration_text(1_500_000_000)
    ('1min', '1500ms')
    """
    return _exact(ns)
