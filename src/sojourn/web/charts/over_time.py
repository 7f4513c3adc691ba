"""What happened when: delays with their interval and percentiles, losses, and any metric.

Columns have the names of answers: ``start_ns`` and ``end_ns`` of each interval (or ``time_ns``), ``mean_ns``,
``low_ns``, ``high_ns``, percentiles as ``p99_ns``, ``sent`` (or ``packets``), ``lost``, ``lost_low``, ``lost_high``. A
point stands in the middle of its interval; where there is no answer a line is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sojourn.core.results import Columns
from sojourn.core.units import format_duration
from sojourn.web.charts.axes import (
    chart,
    column,
    empty,
    finite,
    line,
    moments,
    shown,
    time_axis,
    tooltip,
    value_axis,
    zoom,
)
from sojourn.web.charts.scripts import BAND
from sojourn.web.charts.tokens import LIGHT, Option

# Percentiles as they are called, and their colours: the further out, the warmer.
PERCENTILES = {
    "p50": ("median", LIGHT.green),
    "p90": ("p90", LIGHT.sky),
    "p95": ("p95", LIGHT.purple),
    "p99": ("p99", LIGHT.orange),
    "p999": ("p99.9", LIGHT.vermillion),
}
_USUAL = ("p50", "p99", "p999")


def delay_over_time(columns: Columns, *, percentiles: Sequence[str] = _USUAL, log: bool | None = None) -> Option:
    """The mean delay of each interval with its 95 % interval as a band, and percentiles where they are known."""
    times = _middles(columns)
    mean = column(columns, "mean_ns")
    if not finite(mean):
        return empty("No delays to show over time", "Ask for intervals (--interval), or wait for packets.")
    tails = {name: column(columns, f"{name}_ns") for name in percentiles}
    lines = [
        line(PERCENTILES[name][0], _points(times, values), PERCENTILES[name][1], lineStyle={"width": 1.5})
        for name, values in tails.items()
        if finite(values)
    ]
    low, high = column(columns, "low_ns"), column(columns, "high_ns")
    values = [*mean, *(value for name in tails for value in tails[name])]
    axis = value_axis("delay", "ns", values, log=log)
    description = f"Delay over time: the mean of {len(finite(mean))} intervals is between {_range(mean)}"
    return chart(
        description,
        [
            *_band(times, low, high, axis),
            line("mean", _points(times, mean), LIGHT.blue, lineStyle={"width": 2.5}),
            *lines,
        ],
        xAxis=time_axis(_ends(columns)),
        yAxis=axis,
        tooltip=tooltip("ns"),
        dataZoom=zoom(),
    )


def loss_over_time(columns: Columns) -> Option:
    """The share of packets lost in each interval, with its bounds as a band where it is not exact."""
    times = _middles(columns)
    sent = column(columns, "sent") or column(columns, "packets")
    share = _shares(column(columns, "lost"), sent)
    if not finite(share):
        return empty("No losses to show over time", "Ask for intervals (--interval), or wait for packets.")
    low, high = (_shares(column(columns, name), sent) for name in ("lost_low", "lost_high"))
    axis = value_axis("packets lost", "share", [*share, *high], log=False, min=0)
    if not any(finite([*share, *high])):
        axis["max"] = 0.01
    most = max(finite(share))
    band = _band(times, low, high, axis, LIGHT.vermillion)
    filled = {} if band else {"areaStyle": {"color": LIGHT.vermillion, "opacity": 0.15}}
    drawn = line("lost", _points(times, share), LIGHT.vermillion, **filled)
    return chart(
        f"Loss over time: at most {most:.2%} of an interval's packets",
        [*band, drawn],
        xAxis=time_axis(_ends(columns)),
        yAxis=axis,
        tooltip=tooltip("share"),
        dataZoom=zoom(),
    )


def value_over_time(
    columns: Columns,
    name: str,
    unit: str,
    *,
    value: str = "value",
    low: str = "low",
    high: str = "high",
    log: bool | None = None,
) -> Option:
    """Any quantity over time, in `unit`, with its interval as a band: the columns called `value`, `low` and `high`."""
    times, values = _middles(columns), column(columns, value)
    if not finite(values):
        return empty(f"No {name} to show over time", "Choose a longer time, or wait for the next epoch.")
    lows, highs = column(columns, low), column(columns, high)
    axis = value_axis(name, unit, [*values, *lows, *highs], log=log)
    return chart(
        f"{name} over time, {len(finite(values))} values",
        [*_band(times, lows, highs, axis), line(name, _points(times, values), LIGHT.blue)],
        xAxis=time_axis(_ends(columns)),
        yAxis=axis,
        tooltip=tooltip(unit),
        dataZoom=zoom(),
    )


def _middles(columns: Columns) -> list[float]:
    if "start_ns" not in columns:
        return column(columns, "time_ns")
    start, end = column(columns, "start_ns"), column(columns, "end_ns")
    return [(first + last) / 2 for first, last in zip(start, end or start, strict=True)]


def _ends(columns: Columns) -> list[float | None]:
    return [time for name in ("start_ns", "end_ns", "time_ns") for time in column(columns, name)]


def _points(times: Sequence[float], values: Sequence[float | None]) -> list[list[float | None]]:
    return [[time, value] for time, value in zip(moments(times), shown(values), strict=True)]


def _band(
    times: Sequence[float],
    low: Sequence[float | None],
    high: Sequence[float | None],
    axis: Option,
    colour: str = LIGHT.blue,
    name: str = "95 % interval",
) -> list[Option]:
    """The interval as a band, where there is one; on a logarithmic axis it begins at the axis."""
    ends = [(a, b) for a, b in zip(low, high, strict=True) if a is not None and b is not None]
    if not low or all(a == b for a, b in ends):
        return []
    least = axis.get("min") if axis["type"] == "log" else None
    data: list[list[Any]] = []
    for time, a, b in zip(moments(times), shown(low), shown(high), strict=True):
        data.append([time, a if least is None or a is None else max(a, least), b])
    return [
        {
            "type": "custom",
            "name": name,
            "data": data,
            "dimensions": ["time", "low", "high"],
            "encode": {"x": 0, "y": [1, 2], "tooltip": [1, 2]},
            ":renderItem": BAND,
            "itemStyle": {"color": colour, "opacity": 0.35},
            "clip": True,
            "progressive": 0,
            "z": 1,
        }
    ]


def _shares(counts: Sequence[float | None], sent: Sequence[float | None]) -> list[float | None]:
    pairs = zip(counts, sent, strict=True) if counts else ()
    return [None if count is None or not total else count / total for count, total in pairs]


def _range(values: Sequence[float | None]) -> str:
    known = finite(values)
    return f"{format_duration(min(known))} and {format_duration(max(known))}"
