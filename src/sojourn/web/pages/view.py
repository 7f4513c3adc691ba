"""What a page knows of who looks at it: the token, the range of time asked for, the zone, light or dark.

A view has an address: all that a page shows follows from its path and parameters, so it can be shared, with ranges in
the words of the command line (``from=-1h``, ``to=2026-01-31T10:05``). A time without a zone is the viewer's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlencode
from zoneinfo import ZoneInfo

from fastapi import Request

from sojourn.core.errors import ParameterError
from sojourn.core.units import EPOCH, format_duration, parse_time
from sojourn.store.tokens import Role, Token
from sojourn.web.pages.unit import Unit

RANGES = {"-5m": "5 minutes", "-15m": "15 minutes", "-1h": "hour", "-6h": "6 hours", "-24h": "day", "-7d": "week"}
USUAL_RANGE = "-1h"
_UNITS = {"s": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day", "w": "week"}
_AGO = re.compile(rf"-([0-9]+(?:\.[0-9]+)?)({'|'.join(_UNITS)})")


@dataclass(frozen=True)
class Span:
    """A range of time that begins and ends; `is_open` if it ends now, and goes on with the clock."""

    from_ns: int
    to_ns: int
    is_open: bool

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.to_ns - self.from_ns


class View:
    """One viewer's look at one page."""

    def __init__(self, request: Request) -> None:
        state = request.state
        self._request = request
        self.takes_uploads: bool = state.front.takes_uploads
        self.unit = Unit(state.front.unit, state.session, request.client.host if request.client else "")
        self.path = request.scope["path"]
        self.params = request.query_params
        self.dark = request.cookies.get("sojourn_dark") == "1"

    @property
    def token(self) -> Token:
        """The viewer's token, as it was looked up last."""
        return self.unit.session.token

    @property
    def is_admin(self) -> bool:
        """Whether the viewer may do everything."""
        return self.token.role is Role.ADMIN

    @property
    def sees_all(self) -> bool:
        """Whether the viewer sees all nodes, and so what is about several of them."""
        return self.token.tags is None

    @property
    def address(self) -> str:
        """The query unit's address, as the viewer has it."""
        return f"{self._request.url.scheme}://{self._request.headers.get('host', '')}"

    @cached_property
    def zone(self) -> tzinfo:
        """The viewer's zone, as the browser told; UTC if it did not."""
        try:
            return ZoneInfo(unquote(self._request.cookies.get("sojourn_zone", "UTC"))[:80])
        except (KeyError, ValueError, OSError):
            return UTC

    def param(self, name: str, default: str = "") -> str:
        """A parameter of the address."""
        return self.params.get(name) or default

    @property
    def asked_from(self) -> str:
        """Where the range begins, as asked for."""
        return self.param("from", USUAL_RANGE)

    @property
    def asked_to(self) -> str:
        """Where the range ends, as asked for."""
        return self.param("to", "now")

    def span(self) -> Span:
        """The range asked for, as of now; `ParameterError` if it is none."""
        from_ns, to_ns = self._time(self.asked_from), self._time(self.asked_to)
        if from_ns >= to_ns:
            raise ParameterError("the range ends before it begins", action="choose another one")
        return Span(from_ns, to_ns, is_open=self.asked_to == "now")

    def _time(self, text: str) -> int:
        """A point in time, of the viewer's zone where it names none."""
        text = text.strip()
        moment: datetime | None = None
        try:
            if ":" in text and len(text) <= 8 and not text.startswith("-"):
                text = f"{datetime.now(self.zone).date().isoformat()}T{text.zfill(5)}"
            moment = datetime.fromisoformat(text) if not text.isdigit() else None
        except ValueError:
            pass
        if moment is not None and moment.tzinfo is None:
            return (moment.replace(tzinfo=self.zone) - EPOCH) // timedelta(microseconds=1) * 1000
        return parse_time(text)

    @property
    def range_params(self) -> dict[str, str]:
        """The range, for another page's address; nothing if it is the usual one."""
        given = {"from": self.asked_from, "to": self.asked_to}
        usual = {"from": USUAL_RANGE, "to": "now"}
        return {name: value for name, value in given.items() if value != usual[name]}

    def link(self, path: str, **params: str | Sequence[str] | None) -> str:
        """The address of a page with parameters, in the same range of time."""
        asked: dict[str, Any] = {name: value for name, value in params.items() if value} | self.range_params
        return f"{path}?{urlencode(asked, doseq=True)}" if asked else path

    def time(self, time_ns: int | None) -> str:
        """A point in time in the viewer's zone."""
        if time_ns is None:
            return "–"
        return datetime.fromtimestamp(time_ns / 1e9, self.zone).strftime("%Y-%m-%d %H:%M:%S")

    def zone_name(self) -> str:
        """What to call the viewer's zone."""
        return str(self.zone)


def duration(value: float | None) -> str:
    """A length of time, or that it is not known.

    >>> duration(None), duration(1_500_000)
    ('–', '1.50 ms')
    """
    return "–" if value is None else format_duration(value)


def ahead(offset_ns: int) -> str:
    """How a clock is to another one.

    >>> ahead(1_500_000), ahead(-20_000), ahead(0)
    ('1.50 ms ahead', '20.0 µs behind', 'in step')
    """
    return f"{format_duration(abs(offset_ns))} {'ahead' if offset_ns > 0 else 'behind'}" if offset_ns else "in step"


def kept_in_step(synchronised: bool | None, error_ns: int | None) -> str:
    """What a node's kernel says of its clock.

    Of a clock that nothing keeps in step it says ± 16 s, the most that it can: that is no measurement.

    >>> kept_in_step(True, 1_500_000), kept_in_step(False, 16 * 10**9), kept_in_step(None, None)
    ('± 1.50 ms', 'no', 'not known')
    """
    if synchronised is None:
        return "not known"
    if not synchronised:
        return "no"
    return "yes" if error_ns is None else f"± {format_duration(error_ns)}"


def range_name(asked: str) -> str:
    """What to call a range that begins at a time and ends now, in the words of the usual ones where it has any.

    >>> range_name("-3m"), range_name("-1h"), range_name("-90s"), range_name("2026-01-31")
    ('3 minutes', 'hour', '90 seconds', 'since 2026-01-31')
    """
    if asked in RANGES:
        return RANGES[asked]
    found = _AGO.fullmatch(asked.replace(" ", ""))
    if found is None:
        return f"since {asked}"
    return f"{found[1]} {_UNITS[found[2]]}{'' if found[1] == '1' else 's'}"


def within(row: Mapping[str, Any], unit_text: str = "95 %") -> str:
    """The interval of an estimate in ns, in words."""
    if row.get("low_ns") is None or row.get("high_ns") is None:
        return ""
    if row["low_ns"] == row["high_ns"]:
        return "exact"
    return f"{unit_text}: {duration(row['low_ns'])} … {duration(row['high_ns'])}"
