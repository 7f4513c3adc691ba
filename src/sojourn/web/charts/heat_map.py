"""When delays were how long: a map of time by delay, the more packets the stronger the colour."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sojourn.core.units import plural
from sojourn.web.charts.axes import chart, empty, grid, moments, time_axis, tooltip, value_axis
from sojourn.web.charts.scripts import cell_tooltip, cells, of_power
from sojourn.web.charts.tokens import LIGHT, Option

MOST_CELLS = 40_000  # more are no more visible, and make a page slow


def heat_map(
    times_ns: Sequence[int], delays_ns: Sequence[float], packets: Sequence[Sequence[int]], *, unit: str = "ns"
) -> Option:
    """`packets[i][j]` of the stretch ``times_ns[i]`` to ``times_ns[i + 1]`` with delays in ``delays_ns[j]`` to
    ``delays_ns[j + 1]``: there is one edge more than stretches, and one more than classes of delays.

    Edges are in order; colours follow the logarithm of numbers.
    """
    if len(times_ns) * len(delays_ns) > MOST_CELLS:
        return empty("There is too much to draw", "Choose a shorter time, or longer intervals.")
    found = [[i, j, int(count)] for i, row in enumerate(packets) for j, count in enumerate(row) if count]
    if not found:
        return empty("No delays to show", "Nothing was received in this time.")
    total, most = sum(count for _, _, count in found), max(count for _, _, count in found)
    lowest, highest = min(j for _, j, _ in found), max(j for _, j, _ in found) + 1
    edges = [float(edge) for edge in delays_ns]
    columns = moments(times_ns)
    inner = [edge for edge in edges[lowest : highest + 1] if edge > 0] if edges[lowest] > 0 else edges[lowest:]
    axis = value_axis("delay", unit, inner, axisLine={"show": True})
    if axis["type"] == "value":
        axis |= {"min": edges[lowest], "max": edges[highest]}
        axis["axisLabel"] |= {"showMinLabel": False, "showMaxLabel": False}  # no round numbers
    series: Option = {
        "type": "custom",
        "name": "packets",
        "data": [[i, j, count, math.log10(count)] for i, j, count in found],
        "dimensions": ["column", "row", "packets", "power"],
        ":renderItem": cells(columns, edges),
        "encode": {"tooltip": [2]},
        "clip": True,
        "progressive": 0,
    }
    return chart(
        f"Map of time by delay: {plural(total, 'packet')}, at most {most:,} in a cell",
        [series],
        xAxis=time_axis([times_ns[0], times_ns[-1]]),
        yAxis=axis,
        grid=grid(False, bottom=44),
        tooltip={**tooltip(trigger="item"), ":formatter": cell_tooltip(columns, edges, unit)},
        visualMap={
            "type": "continuous",
            "dimension": 3,
            "min": 0,
            "max": max(math.log10(most), 0.01),
            "calculable": False,
            "orient": "horizontal",
            "left": "center",
            "bottom": 0,
            "itemWidth": 12,
            "itemHeight": 140,
            "text": [f"{most:,} packets", "1"],
            "textStyle": {"color": LIGHT.muted},
            "inRange": {"color": list(LIGHT.heat)},
            ":formatter": of_power(""),
        },
    )
