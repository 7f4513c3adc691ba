"""Units at the edge: durations, sizes, rates, shares and points in time as people write and read them.

Inside, times are integer nanoseconds (since the Unix epoch) and sizes integer bytes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Container
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from sojourn.core.errors import ParameterError

NS_PER_SECOND = 1_000_000_000
LONGEST_NS = 36_525 * 86_400 * NS_PER_SECOND  # sums and differences with points in time stay within 64 bits
_DURATIONS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": NS_PER_SECOND,
    "m": 60 * NS_PER_SECOND,
    "min": 60 * NS_PER_SECOND,
    "h": 3600 * NS_PER_SECOND,
    "d": 86_400 * NS_PER_SECOND,
}
_SIZES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tb": 10**12,
    "tib": 2**40,
}
_RATES = {
    "bit": 1,
    "k": 10**3,
    "kbit": 10**3,
    "m": 10**6,
    "mbit": 10**6,
    "g": 10**9,
    "gbit": 10**9,
}
MOST_TEXT = 200  # of a quantity
_MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_NUMBER = re.compile(r"\s*([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kmg]?)\s*", re.IGNORECASE)
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(%?)\s*", re.IGNORECASE)
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zµ]*)\s*", re.IGNORECASE)


def _parse(text: str, units: dict[str, int], default: str, what: str, where: str) -> int:
    match = _QUANTITY.fullmatch(text) if len(text) <= MOST_TEXT else None
    unit = (match.group(2).lower() or default) if match else ""
    if match is None or unit not in units:
        raise ParameterError(
            f"{text[:MOST_TEXT]!r} is not a {what}",
            where=where,
            action=f"write a number and one of {', '.join(units)}",
        )
    return round(Fraction(match.group(1)) * units[unit])


def parse_duration(text: str | int, *, where: str = "") -> int:
    """Nanoseconds from text such as ``10s``, ``2.5 ms``, ``1h`` or ``30d``, where a bare number is seconds.

    What is a number already is in ns; `where` is what errors name.

    >>> parse_duration("2.5ms"), parse_duration(7)
    (2500000, 7)
    """
    length_ns = text if isinstance(text, int) else _parse(text, _DURATIONS, "s", "duration", where)
    if abs(length_ns) > LONGEST_NS:
        raise ParameterError(f"{text!r} is longer than a century", where=where, action="give a shorter time")
    return length_ns


def parse_bytes(text: str | int, *, where: str = "") -> int:
    """Bytes from text such as ``1MB`` (10⁶), ``16KiB`` (2¹⁴) or ``4096``, or a number.

    >>> parse_bytes("16KiB")
    16384
    """
    return text if isinstance(text, int) else _parse(text, _SIZES, "b", "size", where)


def parse_rate(text: str) -> int:
    """Bits per second from text such as ``10M``, ``500 kbit`` or ``8000``.

    >>> parse_rate("2.5M")
    2500000
    """
    return _parse(text, _RATES, "bit", "rate", "")


def parse_number(text: str) -> float:
    """A number from text such as ``20k``, ``1.5M`` or ``1e6``.

    >>> parse_number("20k")
    20000.0
    """
    match = _NUMBER.fullmatch(text)
    number = float(match.group(1)) * _MULTIPLES[match.group(2).lower()] if match else math.nan
    if not math.isfinite(number):
        raise ParameterError(f"{text!r} is not a number", action="write it like 20000, 20k or 1.5M")
    return number


def parse_share(text: str | float, *, where: str = "") -> float:
    """A share from text such as ``5%`` or ``0.05``, or a number.

    >>> parse_share("5%")
    0.05
    """
    if not isinstance(text, str):
        return text
    match = _SHARE.fullmatch(text)
    if match is None:
        raise ParameterError(f"{text!r} is not a share", where=where, action="write it like 5% or 0.05")
    share = float(match.group(1)) / (100 if match.group(2) else 1)
    if share > 1 and not match.group(2):
        what = f"{text!r} would be {share:.0%}"
        raise ParameterError(what, where=where, action=f"write {text}% if that is what you mean")
    return share


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A number of things, in words that agree with it.

    >>> plural(1, "flow"), plural(1200, "flow"), plural(2, "query", "queries")
    ('1 flow', '1,200 flows', '2 queries')
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


_TIMES = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")]
MOST_DIGITS = 12


def _scaled(value: float, steps: list[tuple[float, str]], more: int = 0) -> str:
    size, unit = next((s for s in steps if abs(value) >= s[0]), steps[-1])
    scaled = value / size
    if scaled == 0:
        return f"0 {unit}"
    digits = max(0, 2 + more - int(math.log10(max(abs(scaled), 1))))
    return f"{scaled:.{digits}f} {unit}"


def format_duration(nanoseconds: float) -> str:
    """A duration with three significant digits in the unit that suits it.

    >>> format_duration(1_234_567)
    '1.23 ms'
    """
    if not math.isfinite(nanoseconds):
        return "∞" if nanoseconds > 0 else "−∞"
    return _scaled(nanoseconds, _TIMES)


_AGES = [(86_400e9, "d"), (3_600e9, "h"), (60e9, "min"), *_TIMES]


def format_age(nanoseconds: int) -> str:
    """How long something is kept or off, to a tenth of the unit that suits it.

    >>> format_age(30 * 86_400 * 10**9), format_age(5_400 * 10**9), format_age(10**9)
    ('30 d', '1.5 h', '1 s')
    """
    size, unit = next((step for step in _AGES if abs(nanoseconds) >= step[0]), _AGES[-1])
    return f"{round(nanoseconds / size, 1):g} {unit}"


def durations_apart(low: float, high: float) -> tuple[str, str]:
    """Two durations with three significant digits, or with as many as tell them apart.

    >>> durations_apart(24_512_000, 24_534_000)
    ('24.51 ms', '24.53 ms')
    """
    if low == high or not (math.isfinite(low) and math.isfinite(high)):
        return format_duration(low), format_duration(high)
    for more in range(MOST_DIGITS):
        texts = _scaled(low, _TIMES, more), _scaled(high, _TIMES, more)
        if texts[0] != texts[1]:
            break
    return texts


def format_bytes(size: float) -> str:
    """A size with three significant digits in powers of 1024.

    >>> format_bytes(16384)
    '16.0 KiB'
    """
    return _scaled(size, [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")])


def format_rate(bits_per_second: float) -> str:
    """A rate with three significant digits.

    >>> format_rate(2_500_000)
    '2.50 Mbit/s'
    """
    return _scaled(bits_per_second, [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s")])


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,9})?)?")
_EPOCH_NUMBER = re.compile(r"0|\d{10}(\.\d+)?|\d{19}")


def parse_time(text: str, *, now_ns: int | None = None) -> int:
    """Nanoseconds from ``now``, ``-5m`` (ago), ``10:05`` (today), ISO 8601, seconds or nanoseconds since 1970.

    A time without a zone is local.

    >>> parse_time("2026-01-01T00:00:00Z")
    1767225600000000000
    >>> parse_time("-1.5s", now_ns=10**10)
    8500000000
    """
    text = text.strip()
    now = time.time_ns() if now_ns is None else now_ns
    try:
        if text == "now":
            return now
        if text.startswith("-"):
            return now - parse_duration(text[1:])
        if _EPOCH_NUMBER.fullmatch(text):
            return int(text) if len(text) == 19 else _parse(text, _DURATIONS, "s", "time", "")
        if _CLOCK.fullmatch(text):
            today = datetime.fromtimestamp(now / 1e9).date()
            text = f"{today.isoformat()}T{text.zfill(len(text) + (text.index(':') == 1))}"
        moment = datetime.fromisoformat(text).astimezone(UTC)
        return (moment - EPOCH) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError, ParameterError):
        raise ParameterError(
            f"{text[:60]!r} is no point in time", action="write now, -5m, 10:05, 2026-01-31T10:05 or seconds since 1970"
        ) from None


def format_time(time_ns: int) -> str:
    """Local date and time to the second, with the zone's offset."""
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(sep=" ", timespec="seconds")


def format_instant(time_ns: int) -> str:
    """Universal date and time, cut to the microsecond, for reports that are compared with data.

    >>> format_instant(1767225600_123456789)
    '2026-01-01T00:00:00.123456Z'
    """
    moment = EPOCH + timedelta(microseconds=time_ns // 1000)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def format_clock(time_ns: int) -> str:
    """Local time of day to the second."""
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%H:%M:%S")


def split_names(text: str, known: Container[str]) -> list[str]:
    """The names in a list with commas, which may be part of known names too; the longest known name goes first.

    >>> split_names("Tacoma,+WA1,Relay", {"Tacoma,+WA1": 0, "Relay": 1})
    ['Tacoma,+WA1', 'Relay']
    """
    parts = text.split(",")
    names: list[str] = []
    while parts:
        lengths = range(len(parts), 0, -1)
        taken = next((n for n in lengths if ",".join(parts[:n]).strip() in known), 1)
        name = ",".join(parts[:taken]).strip()
        names += [name] if name else []
        parts = parts[taken:]
    return names
