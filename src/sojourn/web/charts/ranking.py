"""Which are the slowest or the largest: rows of names, each with its value and the interval that holds it."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.core.units import plural
from sojourn.web.charts.axes import chart, empty, finite, name_axis, shown, tooltip, value_axis
from sojourn.web.charts.scripts import WHISKER
from sojourn.web.charts.tokens import LIGHT, Option

MOST_ROWS = 20


def flow_means(
    names: Sequence[str],
    mean_ns: Sequence[float | None],
    low_ns: Sequence[float | None],
    high_ns: Sequence[float | None],
    *,
    p99_ns: Sequence[float | None] = (),
    tail_name: str = "p99",
    log: bool | None = None,
) -> Option:
    """The mean delay of each flow as a point on its 95 % interval, and p99 (or `tail_name`) beside it.

    The first `MOST_ROWS` are drawn.
    """
    names, mean, low, high = names[:MOST_ROWS], shown(mean_ns)[:MOST_ROWS], low_ns[:MOST_ROWS], high_ns[:MOST_ROWS]
    tail = shown(p99_ns)[:MOST_ROWS]
    if not finite(mean):
        return empty("No flow has a delay", "The table says of each flow why there is no answer.")
    series = [
        *_whiskers(low, high),
        _marks("mean", mean, LIGHT.blue, "circle", 9),
        *([_marks(tail_name, tail, LIGHT.orange, "triangle", 9)] if finite(tail) else []),
    ]
    axis = value_axis("", "ns", [*mean, *tail, *low, *high], log=log, axisLine={"show": True})
    return chart(
        f"Mean delays of {plural(len(finite(mean)), 'flow')} with their 95 % intervals",
        series,
        xAxis=axis,
        yAxis=name_axis(names, above=10),
        tooltip=tooltip("ns", axisPointer={"type": "none"}),
    )


def top_instances(
    names: Sequence[str],
    values: Sequence[float | None],
    low: Sequence[float | None] = (),
    high: Sequence[float | None] = (),
    *,
    unit: str,
    quantity: str = "value",
    wrong: Sequence[bool] = (),
) -> Option:
    """A bar for each instance, with its interval; those marked `wrong` stand out. Negative values go to the left."""
    names, value = names[:MOST_ROWS], shown(values)[:MOST_ROWS]
    low, high = shown(low)[:MOST_ROWS], shown(high)[:MOST_ROWS]
    if not finite(value):
        return empty(f"No {quantity} to show", "Nothing was measured in this time.")
    marked = [*wrong, *(False for _ in names)][: len(names)]
    bars = [
        {"value": each, "itemStyle": {"color": LIGHT.vermillion if is_wrong else LIGHT.blue, "opacity": 0.75}}
        for each, is_wrong in zip(value, marked, strict=True)
    ]
    least, most = min(0.0, *finite([*value, *low, 0.0])), max(0.0, *finite([*value, *high, 0.0]))
    axis = value_axis("", unit, [least, most], log=False, axisLine={"show": True})
    series: list[Option] = [
        {"type": "bar", "name": quantity, "data": bars, "barWidth": 12, "itemStyle": {"color": LIGHT.blue}},
        *_whiskers(low, high, LIGHT.text),
    ]
    return chart(
        f"{quantity} of {plural(len(names), 'instance')} with their 95 % intervals",
        series,
        legend=False,
        xAxis=axis,
        yAxis=name_axis(names, above=8),
        tooltip=tooltip(unit, axisPointer={"type": "none"}),
    )


def _marks(name: str, values: Sequence[float | None], colour: str, symbol: str, size: int) -> Option:
    return {
        "type": "scatter",
        "name": name,
        "data": [[value, row] for row, value in enumerate(values)],
        "encode": {"x": 0, "y": 1, "tooltip": [0]},
        "symbol": symbol,
        "symbolSize": size,
        "itemStyle": {"color": colour},
        "z": 3,
    }


def _whiskers(low: Sequence[float | None], high: Sequence[float | None], colour: str = LIGHT.blue) -> list[Option]:
    """The intervals of rows, where there are any."""
    data = [[row, a, b] for row, (a, b) in enumerate(zip(shown(low), shown(high), strict=True))]
    if all(a is None or b is None or a == b for _, a, b in data):
        return []
    return [
        {
            "type": "custom",
            "name": "95 % interval",
            "data": data,
            "dimensions": ["row", "low", "high"],
            "encode": {"y": 0, "x": [1, 2], "tooltip": [1, 2]},
            ":renderItem": WHISKER,
            "itemStyle": {"color": colour},
            "clip": True,
            "progressive": 0,
            "z": 2,
        }
    ]
