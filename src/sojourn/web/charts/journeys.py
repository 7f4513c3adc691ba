"""One packet's journey: at which node it waited how long, one below the other, with the bounds that are certain."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.core.results import Columns
from sojourn.core.units import format_duration, plural
from sojourn.web.charts.axes import chart, column, empty, name_axis, tooltip, value_axis
from sojourn.web.charts.ranking import MOST_ROWS
from sojourn.web.charts.scripts import SPAN, WHISKER
from sojourn.web.charts.tokens import LIGHT, Option

_MOST_HOPS = 2 * MOST_ROWS
_PALE = 0.28  # of the bounds


def waterfall(hops: Columns) -> Option:
    """The hops of one packet in their order: ``node``, ``delay_ns``, ``low_ns`` and ``high_ns`` (bounds that hold for
    certain) and, where known, ``likely_low_ns`` and ``likely_high_ns`` (95 % intervals).

    A hop begins where the one before ended; its bar is the estimate, the pale bar behind it the bounds.
    """
    delay = [value for value in column(hops, "delay_ns")[:_MOST_HOPS] if value is not None]
    if not delay:
        return empty("There is no journey to show", "Choose a packet that reached the sink.")
    starts = [float(sum(delay[:hop])) for hop in range(len(delay))]
    names = [f"node {node}" for node in column(hops, "node")[: len(delay)]]
    low, high = column(hops, "low_ns") or delay, column(hops, "high_ns") or delay
    ends = [[row, starts[row] + low[row], starts[row] + high[row], _PALE] for row in range(len(delay))]
    waits = [[row, starts[row], starts[row] + delay[row], 0.9] for row in range(len(delay))]
    series = [
        _spans("bounds", ends, LIGHT.grey, _PALE),
        _spans("delay", waits, LIGHT.blue),
        *_likely(starts, column(hops, "likely_low_ns"), column(hops, "likely_high_ns"), len(delay)),
    ]
    for one, values in ((series[0], zip(low, high, strict=False)), (series[1], ((each, each) for each in delay))):
        _tell(one, list(values))
    total = sum(delay)
    return chart(
        f"Journey of {plural(len(delay), 'hop')} in {format_duration(total)}",
        series,
        xAxis=value_axis("", "ns", [0.0, total, *(end for _, _, end, _ in ends)], log=False, axisLine={"show": True}),
        yAxis=name_axis(names, above=10),
        tooltip=tooltip("ns", axisPointer={"type": "none"}),
    )


def _spans(name: str, data: Sequence[Sequence[float]], colour: str, opacity: float = 1.0) -> Option:
    return {
        "type": "custom",
        "name": name,
        "data": [list(one) for one in data],
        "encode": {"y": 0, "x": [1, 2], "tooltip": [4, 5]},
        ":renderItem": SPAN,
        "itemStyle": {"color": colour, "opacity": opacity},  # the legend's
        "clip": True,
    }


def _tell(series: Option, values: Sequence[tuple[float, float]]) -> None:
    """Have the tooltip tell how long rather than when: two more dimensions (one where both are the same)."""
    series["dimensions"] = ["row", "from", "to", "opacity", "at least", "at most"]
    for item, (least, most) in zip(series["data"], values, strict=False):
        item += [least, most]
    if all(least == most for least, most in values):
        series["encode"]["tooltip"] = [4]
        series["dimensions"][4] = "delay"


def _likely(
    starts: Sequence[float], low: Sequence[float | None], high: Sequence[float | None], hops: int
) -> list[Option]:
    data = [
        [row, starts[row] + least, starts[row] + most, 1.0, least, most]
        for row, (least, most) in enumerate(zip(low[:hops], high[:hops], strict=True))
        if least is not None and most is not None
    ]
    if not data:
        return []
    likely = _spans("95 % interval", data, LIGHT.text)
    likely["dimensions"] = ["row", "from", "to", "opacity", "low", "high"]
    return [{**likely, ":renderItem": WHISKER, "z": 3}]
