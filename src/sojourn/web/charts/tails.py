"""How long the slow packets take: the share of packets that take longer than a delay (CCDF), both axes logarithmic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sojourn.core.estimates import LEVELS
from sojourn.web.charts.axes import chart, empty, grid, line, log_ticks, spreads, tooltip, value_axis
from sojourn.web.charts.scripts import BAND
from sojourn.web.charts.tokens import LIGHT, SERIES, Option

Curve = Sequence[tuple[float, float]]  # delay in ns and share that takes longer, the delays in order
_MOST_POINTS = 400


def ccdf(curves: Mapping[str, Curve]) -> Option:
    """The share of packets that take longer than each delay, a curve for each name."""
    kept = {name: _thinned([(x, y) for x, y in points if x > 0 and y > 0]) for name, points in curves.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return empty("No distribution of delays to show", "Too few packets were measured, or the clocks differ.")
    delays = [x for points in kept.values() for x, _ in points]
    shares = [y for points in kept.values() for _, y in points]
    ticks = log_ticks(min(shares), 1.0)
    series = [
        line(name, points, SERIES[place % len(SERIES)], step="end", symbol="none")
        for place, (name, points) in enumerate(kept.items())
    ]
    slowest = max(delays)
    option = chart(
        f"Share of packets that take longer than a delay, up to {slowest / 1e6:.4g} ms",
        series,
        xAxis=value_axis("", "ns", delays, log=spreads(delays), **_ruled(delays)),
        yAxis=_share_axis(ticks),
        tooltip=tooltip("share"),
        grid=grid(shows_legend=False),
    )
    if len(series) > 1:
        option["legend"] = _in_the_corner(option["legend"])
    return option


def percentile_curve(row: Mapping[str, Any], *, name: str = "all packets", curve: Curve = ()) -> Option:
    """The same from the percentiles of one answer (``p50_ns`` … ``p999_ns``), with their intervals as a band.

    `curve` is that of the sampled packets, where these are at hand: all of the distribution, without intervals.
    """
    known: list[tuple[float, float, Any, Any]] = [
        (1 - level, row[f"{each}_ns"], row.get(f"{each}_low_ns"), row.get(f"{each}_high_ns"))
        for each, level in LEVELS.items()
        if (row.get(f"{each}_ns") or 0) > 0
    ]
    if not known:
        return empty("No percentiles to show", "This sketch keeps no packets' own delays; use --sketch auto or sample.")
    delays = [delay for one in known for delay in one[1:] if delay is not None and delay > 0]
    drawn = _thinned([(x, y) for x, y in curve if x > 0 and y > 0])
    delays += [delay for delay, _ in drawn]
    # The band lies between delays, along shares: what is horizontal here is vertical for the series.
    band = [[share, low, high] for share, _, low, high in known if low is not None and high is not None and low < high]
    axis = value_axis("", "ns", delays, log=spreads(delays), **_ruled(delays))
    points = [(delay, share) for share, delay, _, _ in known]
    series = [line(name, points, LIGHT.blue, symbolSize=7, **({"lineStyle": {"width": 0}} if drawn else {}))]
    if drawn:
        series.append(line("sampled packets", drawn, LIGHT.grey, step="end", symbol="none"))
    if band:
        series.insert(0, _sideways(band))
    return chart(
        f"Share of {name} that take longer than a delay, at {len(known)} percentiles",
        series,
        xAxis=axis,
        yAxis=_share_axis(log_ticks(min([*(share for share, *_ in known), *(share for _, share in drawn)]), 1.0)),
        tooltip=tooltip("share"),
    )


def curve_of_buckets(from_ns: Iterable[int], to_ns: Iterable[int], packets: Iterable[int]) -> list[tuple[float, float]]:
    """The curve of delays counted in buckets, of one flow or several together; at each bucket's upper end.

    >>> curve_of_buckets([1, 3], [2, 4], [3, 1])
    [(1.0, 1.0), (2.0, 0.25), (4.0, 0.0)]
    """
    together: dict[int, int] = {}
    least = None
    for begin, end, count in zip(from_ns, to_ns, packets, strict=True):
        together[int(end)] = together.get(int(end), 0) + int(count)
        least = int(begin) if least is None else min(least, int(begin))
    total = sum(together.values())
    if not total or least is None:
        return []
    curve, above = [(float(least), 1.0)], total
    for end in sorted(together):
        above -= together[end]
        curve.append((float(end), above / total))
    return curve


def _sideways(band: list[list[float]]) -> Option:
    swapped = BAND.replace("api.coord([x, low])", "api.coord([low, x])").replace(
        "api.coord([x, high])", "api.coord([high, x])"
    )
    return {
        "type": "custom",
        "name": "95 % interval",
        "data": band,
        "dimensions": ["share", "low", "high"],
        "encode": {"x": [1, 2], "y": 0},
        ":renderItem": swapped,
        "itemStyle": {"color": LIGHT.blue, "opacity": 0.35},
        "tooltip": {"show": False},
        "clip": True,
        "progressive": 0,
    }


def _in_the_corner(legend: Option) -> Option:
    """The legend below the curves' shoulder, where nothing is: long names have room there."""
    kept = {name: value for name, value in legend.items() if not name.startswith("page")}
    text = {**legend["textStyle"], "width": 210, "overflow": "truncate", "fontSize": 11}
    place = {"type": "plain", "orient": "vertical", "left": 62, "bottom": 34, "itemGap": 4, "textStyle": text}
    return {name: value for name, value in kept.items() if name not in ("top", "right")} | place


def _share_axis(ticks: Sequence[float]) -> Option:
    axis = value_axis("of packets take longer", "share", ticks, log=True)
    axis["axisLabel"]["customValues"] = axis["axisTick"]["customValues"] = list(ticks)
    return {**axis, "min": ticks[0], "max": 1.0}


def _ruled(delays: Sequence[float]) -> Option:
    """An axis that begins where the delays do: at the least where it is logarithmic, else at the round number below."""
    begin: Option = {"min": "dataMin"} if spreads(delays) else {"min": None, "scale": True}
    return {"axisLine": {"show": True}, "splitLine": {"show": True}, **begin}


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most so many points: every so many of the first, and all of the last, which are the tail."""
    if len(points) <= _MOST_POINTS:
        return points
    half = _MOST_POINTS // 2
    step = -(-(len(points) - half) // half)
    return points[:-half:step] + points[-half:]
