"""What all charts have in common: axes with units, a tooltip, a legend, and a word where there is nothing to show.

Delays are in ns and times in ns since the Unix epoch, as in all answers. An axis is logarithmic where positive values
spread over more than `LOG_SPREAD`; its ticks then are whole decades, or 1, 2 and 5 of them where there are few.
Colours are the light theme's (`tokens.in_theme` gives another's). Nothing moves: charts are read and printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sojourn.core.results import Columns, plain
from sojourn.web.charts.scripts import AXIS_DIGITS, formatter, of_pointer
from sojourn.web.charts.tokens import LIGHT, SERIES, Option

LOG_SPREAD = 30.0  # largest by smallest; below, a linear axis shows both well
NS_PER_MS = 1e6
# Heights that suit a chart, in pixels.
FEW_POINTS = 40  # of a line, each of which is marked
HEIGHT, NETWORK_HEIGHT, ROW_HEIGHT, FRAME_HEIGHT = 320, 470, 40, 70
_MOST_DECADES, _FEW_DECADES = 8, 2
_SPLITS = 5
_CLOCK, _DATE = "{HH}:{mm}", "{d} {MMM}"
_OF_DAYS = {"hour": _CLOCK, "day": _DATE, "month": _DATE, "year": _DATE}  # what begins a day says which
_TIMES = {
    "year": "{yyyy}",
    "month": "{MMM} {yyyy}",
    "day": _DATE,
    "hour": _OF_DAYS,
    "minute": {"minute": _CLOCK, **_OF_DAYS},
    "second": "{HH}:{mm}:{ss}",
    "millisecond": "{HH}:{mm}:{ss}.{SSS}",
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"


def chart(description: str, series: Sequence[Option], *, legend: bool = True, **parts: Any) -> Option:
    """An option of these series and parts; `description` is what is read aloud instead of it."""
    named = [one["name"] for one in series if one.get("name")]
    shows_legend = legend and len(named) > 1
    option: Option = {
        "animation": False,
        "aria": {"enabled": True, "label": {"description": description}},
        "backgroundColor": "transparent",
        "color": list(SERIES),
        "textStyle": {"fontFamily": _FONT, "color": LIGHT.text},
        "tooltip": tooltip(),
        "grid": grid(shows_legend, has_rows=parts.get("yAxis", {}).get("type") == "category"),
        "series": list(series),
    }
    if shows_legend:
        option["legend"] = {
            "type": "scroll",
            "top": 0,
            "left": 0,
            "right": 0,
            "itemGap": 14,
            "itemWidth": 20,
            "itemHeight": 14,  # as high as its text, which is cut off where the legend is turned over
            "data": named,
            "textStyle": {"color": LIGHT.text},
            "pageTextStyle": {"color": LIGHT.muted},
            "pageIconColor": LIGHT.blue,
            "pageIconInactiveColor": LIGHT.grid,
        }
    return option | parts


def grid(shows_legend: bool, *, has_rows: bool = False, bottom: int = 8) -> Option:
    """Where the axes stand: below the legend, and below the name of the upright axis, which rows do not have."""
    top = (28 if shows_legend else 0) + (10 if has_rows else 34)
    # Names of rows stand inside, so that nothing else makes room for half of the first number below.
    return {"left": 26 if has_rows else 8, "right": 26, "top": top, "bottom": bottom, "containLabel": True}


def tooltip(unit: str = "", *, trigger: str = "axis", **more: Any) -> Option:
    """A tooltip whose values are in `unit`."""
    return {
        "trigger": trigger,
        "confine": True,
        "axisPointer": {"type": "line", "lineStyle": {"color": LIGHT.axis}},
        "backgroundColor": LIGHT.raised,
        "borderColor": LIGHT.axis,
        "textStyle": {"color": LIGHT.text, "fontSize": 12},
        ":valueFormatter": formatter(unit),
        **more,
    }


def empty(what: str, action: str = "") -> Option:
    """A chart of nothing that says so, and what to do."""
    return {
        "aria": {"enabled": True, "label": {"description": f"{what} {action}".strip()}},
        "backgroundColor": "transparent",
        "title": {
            "text": what,
            "subtext": action,
            "left": "center",
            "top": "middle",
            "itemGap": 8,
            "textStyle": {"color": LIGHT.text, "fontSize": 15, "fontWeight": "normal", "fontFamily": _FONT},
            "subtextStyle": {"color": LIGHT.muted, "fontSize": 13, "fontFamily": _FONT},
        },
        "series": [],
    }


def is_empty(option: Mapping[str, Any]) -> bool:
    """Whether a chart shows nothing."""
    return not option["series"]


def height_px(option: Mapping[str, Any]) -> int:
    """How high a chart should be: those with a row for each name grow with them, and networks need room."""
    if any(one.get("type") == "graph" for one in option["series"]):
        return NETWORK_HEIGHT
    axis = option.get("yAxis")
    rows = axis.get("data") if isinstance(axis, dict) else None
    return HEIGHT if rows is None else FRAME_HEIGHT + ROW_HEIGHT * max(len(rows), 1)


def value_axis(name: str, unit: str, values: Iterable[float | None], *, log: bool | None = None, **more: Any) -> Option:
    """An axis of values, logarithmic where they spread over decades unless `log` says."""
    known = finite(values)
    positive = [value for value in known if value > 0]
    is_log = spreads(known) if log is None else log and bool(positive)
    axis: Option = {
        "type": "log" if is_log else "value",
        "name": name,
        "nameTextStyle": {"color": LIGHT.muted, "align": "left", "padding": [0, 0, 2, 0]},
        "axisLabel": {"color": LIGHT.muted, "hideOverlap": True, ":formatter": formatter(unit, digits=AXIS_DIGITS)},
        "axisLine": {"show": False, "lineStyle": {"color": LIGHT.axis}},
        "axisTick": {"show": False},
        "splitLine": {"show": True, "lineStyle": {"color": LIGHT.grid}},
        "splitNumber": _SPLITS,
        "axisPointer": {"label": {":formatter": of_pointer(unit)}},
    }
    if is_log:
        low, high = min(positive), max(positive)
        ticks = log_ticks(low, high)
        axis |= {"min": min(ticks[0], low), "max": max(ticks[-1], high)}
        axis["axisLabel"] |= {"customValues": ticks}
        axis["axisTick"] |= {"customValues": ticks}
    elif known and min(known) >= 0:
        axis["min"] = 0
        if unit in ("B", "bytes"):
            axis["interval"] = byte_step(max(known))
            axis["max"] = axis["interval"] * max(1, math.ceil(max(known) / axis["interval"]))
    return _merged(axis, more)


def byte_step(most: float) -> float:
    """How far apart numbers stand on an axis of bytes up to `most`: round ones in KiB, MiB and so on.

    >>> byte_step(46.6 * 2**20) / 2**20, byte_step(3000), byte_step(0)
    (10.0, 1024.0, 1.0)
    """
    steps = (factor * 1024.0**power for power in range(9) for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500))
    return next((step for step in steps if step * _SPLITS >= most), most / _SPLITS)


def time_axis(times_ns: Iterable[float | None] = (), **more: Any) -> Option:
    """An axis of times in ms since the epoch, as `moments` gives them; in the zone of who looks."""
    known = finite(times_ns)
    limits = {"min": min(known) / NS_PER_MS, "max": max(known) / NS_PER_MS} if known and min(known) < max(known) else {}
    axis: Option = {
        "type": "time",
        "axisLabel": {"color": LIGHT.muted, "hideOverlap": True, "formatter": _TIMES, "alignMaxLabel": "right"},
        "axisLine": {"lineStyle": {"color": LIGHT.axis}},
        "axisTick": {"lineStyle": {"color": LIGHT.axis}},
        "splitLine": {"show": False},
        "splitNumber": 4,
        **limits,
    }
    return _merged(axis, more)


def name_axis(names: Sequence[str], *, above: int) -> Option:
    """Rows with names, the first on top; a name stands so many pixels above the middle of its row, so that a long one
    takes no room from what is drawn there.
    """
    axis: Option = {
        "type": "category",
        "data": list(names),
        "inverse": True,
        "axisLine": {"lineStyle": {"color": LIGHT.axis}},
        "axisTick": {"show": False},
        "axisLabel": {
            "inside": True,
            "interval": 0,
            "color": LIGHT.text,
            "fontSize": 12,
            "align": "left",
            "verticalAlign": "bottom",
            "margin": 4,
            "padding": [0, 0, above, 0],
            "width": 320,
            "overflow": "truncate",
        },
        "z": 5,
    }
    return axis


def moments(times_ns: Iterable[float]) -> list[float]:
    """Times as a time axis takes them: ms since the epoch, exact to a µs."""
    return [time_ns / NS_PER_MS for time_ns in times_ns]


def column(columns: Columns, name: str) -> list[Any]:
    """A column in Python's own numbers; nothing where there is no such column."""
    return list(plain(columns[name])) if name in columns else []


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, None where a row has no such name.

    >>> columns_of([{"a": 1}, {"a": 2, "b": 3}])
    {'a': [1, 2], 'b': [None, 3]}
    """
    known = list(rows)
    names = dict.fromkeys(name for row in known for name in row)
    return {name: [row.get(name) for row in known] for name in names}


def finite(values: Iterable[float | None]) -> list[float]:
    """The values that are numbers.

    >>> finite([1, None, float("nan"), float("inf")])
    [1]
    """
    return [value for value in values if value is not None and math.isfinite(value)]


def shown(values: Iterable[float | None]) -> list[float | None]:
    """The values as JSON has them: None for what is no number.

    >>> shown([1, None, float("nan")])
    [1, None, None]
    """
    return [value if value is not None and math.isfinite(value) else None for value in values]


def spreads(values: Iterable[float | None]) -> bool:
    """Whether values are all positive and so far apart that only a logarithmic axis shows the small ones.

    >>> spreads([1e3, 1e6]), spreads([0, 1e6]), spreads([2, 3])
    (True, False, False)
    """
    known = finite(values)
    return bool(known) and min(known) > 0 and max(known) / min(known) > LOG_SPREAD


def log_ticks(low: float, high: float) -> list[float]:
    """Where to write numbers on a logarithmic axis: round ones, the first and the last around all values.

    >>> log_ticks(1500, 3e6)
    [1000.0, 10000.0, 100000.0, 1000000.0, 10000000.0]
    >>> log_ticks(30, 90)
    [20.0, 50.0, 100.0]
    """
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    decades = max(last - first, 1)
    if decades <= _FEW_DECADES:
        fine = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
        begin = max((tick for tick in fine if tick <= low * (1 + 1e-9)), default=fine[0])
        end = min((tick for tick in fine if tick >= high * (1 - 1e-9)), default=fine[-1])
        return [tick for tick in fine if begin <= tick <= end]
    step = -(-decades // _MOST_DECADES)
    return [10.0**power for power in range(first, first + step * (-(-decades // step)) + 1, step)]


def zoom() -> list[Option]:
    """Zooming along the time by shift and wheel, and moving by dragging with shift; nothing is filtered out."""
    return [{"type": "inside", "filterMode": "none", "zoomOnMouseWheel": "shift", "moveOnMouseMove": "shift"}]


def line(name: str, points: Sequence[Sequence[float | None]], colour: str, **more: Any) -> Option:
    """A line through points; it is broken where a value is missing, and points between two gaps are marked."""
    few = len(points) <= FEW_POINTS
    return _merged(
        {
            "type": "line",
            "name": name,
            "data": [list(point) for point in points] if few else _alone_marked(points),
            "showSymbol": True,
            "showAllSymbol": True,
            "symbol": "circle" if few else "none",
            "symbolSize": 5,
            "connectNulls": False,
            "lineStyle": {"width": 2, "color": colour},
            "itemStyle": {"color": colour},
            "emphasis": {"disabled": True},
        },
        more,
    )


def _alone_marked(points: Sequence[Sequence[float | None]]) -> list[Any]:
    """Points of a line; those that nothing is drawn to or from are marked, as they would not be seen."""
    known = [False, *(point[1] is not None for point in points), False]
    return [
        {"value": list(point), "symbol": "circle", "symbolSize": 3}
        if known[k + 1] and not known[k] and not known[k + 2]
        else list(point)
        for k, point in enumerate(points)
    ]


def _merged(base: Option, more: Mapping[str, Any]) -> Option:
    """`base` with `more`, one level deep."""
    result = dict(base)
    for key, value in more.items():
        old = result.get(key)
        result[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return result
