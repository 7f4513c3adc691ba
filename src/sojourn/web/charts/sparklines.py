"""A line as high as a word: where a value is heading, for cards and rows of tables."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.web.charts.axes import finite, shown
from sojourn.web.charts.tokens import LIGHT, Option


def sparkline(values: Sequence[float | None], *, description: str = "trend", is_wrong: bool = False) -> Option:
    """A line without axes, its last point marked; nothing at all where fewer than two values are known."""
    known = finite(values)
    colour = LIGHT.vermillion if is_wrong else LIGHT.blue
    last = max((place for place, value in enumerate(shown(values)) if value is not None), default=0)
    series: Option = {
        "type": "line",
        "data": shown(values),
        "showSymbol": False,
        "silent": True,
        "lineStyle": {"width": 1.5, "color": colour},
        "itemStyle": {"color": colour},
        "areaStyle": {"color": colour, "opacity": 0.12},
        "markPoint": {
            "symbol": "circle",
            "symbolSize": 5,
            "label": {"show": False},
            "data": [{"coord": [last, values[last]]}],
        }
        if known
        else {"data": []},
    }
    return {
        "animation": False,
        "aria": {"enabled": True, "label": {"description": description}},
        "backgroundColor": "transparent",
        "grid": {"left": 2, "right": 4, "top": 4, "bottom": 2},
        "tooltip": {"show": False},
        "xAxis": {"type": "category", "show": False, "boundaryGap": False},
        "yAxis": {"type": "value", "show": False, "scale": True},
        "series": [series] if len(known) > 1 else [],
    }
