"""Where along a path the time goes: each segment's share of the delay, stacked, for the times or paths compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sojourn.core.units import format_duration
from sojourn.web.charts.axes import chart, empty, finite, name_axis, shown, tooltip, value_axis
from sojourn.web.charts.ranking import MOST_ROWS
from sojourn.web.charts.tokens import LIGHT, SERIES, Option

# Of so many segments those with the largest delays have their own colour; the rest stand together.
_APART = 12


def path_breakdown(
    segments: Sequence[str], bars: Mapping[str, Sequence[float | None]], *, cause: str | None = None
) -> Option:
    """A bar for each name (a path, "before", "now"), made of the mean delays in ns of the segments, in their order.

    `cause` is the segment that stands out. A segment that was not measured is left out of its bar.
    """
    rows = dict(list(bars.items())[:MOST_ROWS])
    totals = {name: sum(finite(values)) for name, values in rows.items()}
    if not any(finite(value for values in rows.values() for value in values)):
        return empty("No segment of this path was measured", "Upgrade routers on it, or send probes.")
    names, columns = _gathered(segments, rows, cause)
    drawn = [
        {
            "type": "bar",
            "name": name,
            "stack": "path",
            "barWidth": 18,
            "data": shown(values),
            "itemStyle": {"color": _colour(place, name, cause), "borderColor": LIGHT.surface, "borderWidth": 1},
            "emphasis": {"disabled": True},
        }
        for place, (name, values) in enumerate(zip(names, columns, strict=True))
    ]
    said = "; ".join(f"{name} {format_duration(total)}" for name, total in totals.items())
    return chart(
        f"Delay by segment: {said}",
        drawn,
        xAxis=value_axis("", "ns", [0.0, *totals.values()], log=False, axisLine={"show": True}),
        yAxis=name_axis(list(rows), above=11),
        tooltip=tooltip("ns", axisPointer={"type": "none"}),
    )


def _gathered(
    segments: Sequence[str], rows: Mapping[str, Sequence[float | None]], cause: str | None
) -> tuple[list[str], list[list[float | None]]]:
    """The segments' names and values across the bars; beyond `_APART` the small ones stand together."""
    columns = [[values[place] for values in rows.values()] for place in range(len(segments))]
    if len(segments) <= _APART:
        return list(segments), columns
    sizes = [max(finite(values), default=0.0) for values in columns]
    order = sorted(range(len(segments)), key=lambda place: (segments[place] != cause, -sizes[place]))
    own, rest = sorted(order[: _APART - 1]), sorted(order[_APART - 1 :])
    together: list[float | None] = [sum(finite(columns[place][k] for place in rest)) for k in range(len(rows))]
    names = [*(segments[place] for place in own), f"{len(rest)} others"]
    return names, [*(columns[place] for place in own), together]


def _colour(place: int, name: str, cause: str | None) -> str:
    if name == cause:
        return LIGHT.vermillion
    others = [colour for colour in SERIES if cause is None or colour != LIGHT.vermillion]
    return others[place % len(others)]
