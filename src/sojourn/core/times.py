"""Points in time as people write and read them; inside they are nanoseconds since the Unix epoch."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from sojourn.core.errors import ParameterError
from sojourn.core.units import parse_duration

__all__ = ["format_clock", "format_instant", "format_time", "parse_time"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,9})?)?")
_NUMBER = re.compile(r"\d{10}(\.\d+)?|\d{19}")


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
        if _NUMBER.fullmatch(text):
            return int(text) if len(text) == 19 else parse_duration(text)
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
