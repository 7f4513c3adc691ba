"""Packets one by one: each one's delay over time with lost ones marked, and when packets were lost, in which bursts.

Columns have the names of answers: ``time_ns``, ``delay_ns`` and ``fate`` of a flow's packets; ``time_ns`` and ``burst``
of lost ones. O(packets): as many as an answer carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sojourn.core.results import Columns
from sojourn.core.units import format_duration, plural
from sojourn.web.charts.axes import chart, column, empty, finite, moments, time_axis, tooltip, value_axis, zoom
from sojourn.web.charts.tokens import LIGHT, Option

_SMALL, _MARK = 4, 9
_FATES = {
    "lost": ("lost", LIGHT.vermillion, "path://M0 0L8 8M8 0L0 8"),
    "open": ("not known yet", LIGHT.orange, "diamond"),
}


def packet_delays(columns: Columns, *, log: bool | None = None) -> Option:
    """Each packet's delay by when it was sent; those without one stand on the axis, by what became of them."""
    times, delays, fates = (column(columns, name) for name in ("time_ns", "delay_ns", "fate"))
    if not times:
        return empty("No packets to show", "Neither ledger holds one of this flow in this time.")
    axis = value_axis("delay", "ns", delays, log=log)
    foot = axis.get("min", min(finite(delays), default=0))
    known = [(time, delay) for time, delay in zip(times, delays, strict=True) if delay is not None]
    series = [_dots("delay", known, LIGHT.blue, _SMALL)] if known else []
    for fate, (name, colour, symbol) in _FATES.items():
        marked = [(time, foot) for time, one in zip(times, fates, strict=True) if one == fate]
        if marked:
            # Beside its time a mark has no value to tell.
            aside = {"symbol": symbol, "tooltip": {":formatter": "(one) => one.seriesName"}, "z": 4, "clip": False}
            if fate == "lost":
                aside["itemStyle"] = {"color": "transparent", "borderColor": colour, "borderWidth": 2}
            series.append({**_dots(name, marked, colour, _MARK), **aside})
    return chart(
        _described(delays, fates),
        series,
        xAxis=time_axis(times),
        yAxis=axis,
        tooltip=tooltip("ns", trigger="item"),
        dataZoom=zoom(),
    )


def losses_in_bursts(columns: Columns) -> Option:
    """Each burst of lost packets by when it began, as high as it has packets."""
    times, bursts = column(columns, "time_ns"), column(columns, "burst")
    if not times:
        return empty("No packet was lost", "")
    begun: dict[int, float] = {}
    count: dict[int, int] = {}
    for time, burst in zip(times, bursts, strict=True):
        begun.setdefault(burst, time)
        count[burst] = count.get(burst, 0) + 1
    points = [(begun[burst], count[burst]) for burst in begun]
    most = max(count.values())
    axis = value_axis("lost together", "packets", list(count.values()), log=False, minInterval=1)
    return chart(
        f"{plural(len(times), 'lost packet')} in {plural(len(points), 'burst')}, of {most:,} at most",
        [_dots("lost together", points, LIGHT.vermillion, _SMALL + 2)],
        xAxis=time_axis(times),
        yAxis=axis,
        tooltip=tooltip("packets", trigger="item"),
        dataZoom=zoom(),
    )


def _dots(name: str, points: Sequence[tuple[float, Any]], colour: str, size: int) -> Option:
    at = moments(time for time, _ in points)
    return {
        "type": "scatter",
        "name": name,
        "data": [[time, value] for time, (_, value) in zip(at, points, strict=True)],
        "encode": {"x": 0, "y": 1, "tooltip": [1]},
        "symbolSize": size,
        "itemStyle": {"color": colour},
        "emphasis": {"disabled": True},
    }


def _described(delays: Sequence[float | None], fates: Sequence[str]) -> str:
    known = finite(delays)
    lost = sum(fate == "lost" for fate in fates)
    between = f", delays between {format_duration(min(known))} and {format_duration(max(known))}" if known else ""
    return f"{plural(len(fates), 'packet')}, {lost:,} lost{between}"
