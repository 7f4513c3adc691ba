"""Lines over any axis: what an upgrade buys, and the figures of papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sojourn.web.charts.axes import chart, empty, finite, grid, line, shown, tooltip, value_axis
from sojourn.web.charts.tokens import LIGHT, SERIES, Option


@dataclass(frozen=True)
class Curve:
    """One line: its points, and how it is drawn."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    dash: Literal["solid", "dashed", "dotted"] = "solid"
    colour: str | None = None


def curves(
    lines: Sequence[Curve],
    *,
    x_name: str,
    y_name: str,
    x_unit: str = "",
    y_unit: str = "",
    log: str = "",
    from_zero: bool = False,
) -> Option:
    """Lines on common axes; `log` names those that are logarithmic (``"x"``, ``"xy"``)."""
    if not any(finite(one.y) for one in lines):
        return empty(f"No {y_name} to show")
    drawn = [
        line(
            one.name,
            [list(point) for point in zip(shown(one.x), shown(one.y), strict=True)],
            one.colour or SERIES[place % len(SERIES)],
            lineStyle={"type": one.dash},
        )
        for place, one in enumerate(lines)
    ]
    across = value_axis(
        x_name, x_unit, (x for one in lines for x in one.x), log="x" in log, axisLine={"show": True},
        nameLocation="middle", nameGap=28, nameTextStyle={"align": "center"},
    )  # fmt: skip
    up = value_axis(y_name, y_unit, (y for one in lines for y in one.y), log="y" in log)
    for axis in (across, up):
        if axis["type"] == "value" and not (from_zero and axis is up):
            axis.pop("min", None)
            axis["scale"] = True
    return chart(
        f"{y_name} over {x_name}: {', '.join(one.name for one in lines)}",
        drawn,
        xAxis=across,
        yAxis=up,
        grid=grid(len(lines) > 1, bottom=26),
        tooltip=tooltip(y_unit),
    )


def probe_hop_count(upgraded: Sequence[int], hops: Sequence[int], *, now: int | None = None) -> Option:
    """How many hops all probes pass together, by the number of upgraded routers; `now` is the number looked at."""
    option = curves(
        [Curve("probe hop count", upgraded, hops)], x_name="upgraded routers", y_name="probe hop count", log="y"
    )
    return _with_mark(option, now)


def granularity(
    upgraded: Sequence[int],
    mean: Sequence[float],
    shortest: Sequence[int],
    longest: Sequence[int],
    *,
    now: int | None = None,
) -> Option:
    """How many hops a segment has, in the mean and at its extremes, by the number of upgraded routers."""
    lines = [
        Curve("longest", upgraded, longest, "dashed", LIGHT.orange),
        Curve("mean", upgraded, mean, "solid", LIGHT.blue),
        Curve("shortest", upgraded, shortest, "dotted", LIGHT.green),
    ]
    option = curves(lines, x_name="upgraded routers", y_name="hops of a segment", from_zero=True)
    return _with_mark(option, now)


def _with_mark(option: Option, now: int | None) -> Option:
    """The option with a vertical line at the number looked at."""
    if now is not None and option["series"]:
        option["series"][0]["markLine"] = {
            "silent": True,
            "symbol": "none",
            "label": {"show": False},
            "lineStyle": {"color": LIGHT.muted, "type": "solid", "width": 1.5},
            "data": [{"xAxis": now}],
        }
    return option
