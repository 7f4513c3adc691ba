"""Charts are plain dictionaries: JSON, in known colours, with units, and with a word where there is nothing to show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from sojourn.core.errors import ParameterError
from sojourn.web.charts.axes import columns_of, empty, height_px, is_empty, log_ticks, value_axis
from sojourn.web.charts.curves import Curve, curves, granularity, probe_hop_count
from sojourn.web.charts.heat_map import heat_map
from sojourn.web.charts.journeys import waterfall
from sojourn.web.charts.networks import Link, Node, network, placed
from sojourn.web.charts.over_time import delay_over_time, loss_over_time, value_over_time
from sojourn.web.charts.packets import losses_in_bursts, packet_delays
from sojourn.web.charts.paths import path_breakdown
from sojourn.web.charts.ranking import flow_means, top_instances
from sojourn.web.charts.scripts import formatter
from sojourn.web.charts.sparklines import sparkline
from sojourn.web.charts.tails import ccdf, curve_of_buckets, percentile_curve
from sojourn.web.charts.tokens import DARK, LIGHT, Option, colours, in_theme

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028"
START = 1_794_712_577 * 10**9
SECOND = 10**9
MS = 10**6


def intervals(count: int = 6, **columns: list[float | None]) -> dict[str, Any]:
    starts = [START + k * SECOND for k in range(count)]
    return {"start_ns": starts, "end_ns": [start + SECOND for start in starts], **columns}


DELAYS = intervals(
    mean_ns=[20 * MS, 21 * MS, None, 22 * MS, 25 * MS, 20 * MS],
    low_ns=[19 * MS, 20 * MS, None, 21 * MS, 23 * MS, 18 * MS],
    high_ns=[21 * MS, 22 * MS, None, 23 * MS, 27 * MS, math.inf],
    p50_ns=[20 * MS] * 6,
    p99_ns=[40 * MS] * 6,
    sent=[100] * 6,
    lost=[0, 1, None, 3, 4, 5],
)
HOPS = {
    "node": [17, 4, 9],
    "delay_ns": [20 * MS, 5 * MS, 40 * MS],
    "low_ns": [10 * MS, 2 * MS, 20 * MS],
    "high_ns": [40 * MS, 9 * MS, 70 * MS],
    "likely_low_ns": [15 * MS, 3 * MS, None],
    "likely_high_ns": [25 * MS, 7 * MS, None],
}
ANSWER = {f"p{name}_{part}": value * MS for name, value in (("50", 20), ("99", 60)) for part in ("ns", "low_ns")}
PACKETS = {
    "time_ns": [START + k * SECOND for k in range(4)],
    "delay_ns": [5 * MS, None, 7 * MS, None],
    "fate": ["arrived", "lost", "arrived", "open"],
}
FULL: dict[str, Option] = {
    "packets": packet_delays(PACKETS),
    "bursts": losses_in_bursts({"time_ns": PACKETS["time_ns"], "burst": [0, 0, 1, 2]}),
    "delays": delay_over_time(DELAYS),
    "losses": loss_over_time({**DELAYS, "lost_low": [0] * 6, "lost_high": [9] * 6}),
    "values": value_over_time({"time_ns": [START], "value": [3.5]}, HOSTILE, "operations"),
    "map": heat_map([START, START + SECOND, START + 2 * SECOND], [1e3, 1e4, 1e5], [[3, 0], [0, 500]]),
    "ccdf": ccdf({HOSTILE: curve_of_buckets([1, 1000], [999, 9999], [90, 10])}),
    "percentiles": percentile_curve(ANSWER | {"p50_high_ns": 22 * MS, "p99_high_ns": 90 * MS}),
    "means": flow_means(
        [HOSTILE, "b"], [1 * MS, 90 * MS], [MS / 2, 80 * MS], [2 * MS, 99 * MS], p99_ns=[None, 99 * MS]
    ),
    "instances": top_instances([HOSTILE], [5.0], [4.0], [7.0], unit="operations", quantity="disk writes"),
    "path": path_breakdown([HOSTILE, "b"], {"before": [1 * MS, None], "now": [2 * MS, 3 * MS]}, cause="b"),
    "curves": curves([Curve(HOSTILE, [1, 10], [0.1, None], "dashed")], x_name="rows", y_name="error", log="x"),
    "hops": probe_hop_count([0, 1], [900, 20], now=1),
    "granularity": granularity([0, 1], [3.0, 2.5], [1, 1], [6, 5]),
    "network": network(
        [Node(HOSTILE, 3e6, is_marked=True), Node("2", 1e3), Node("3")], [Link(0, 1, 0.5, True, HOSTILE)]
    ),
    "journey": waterfall(HOPS),
    "spark": sparkline([1, None, 3]),
}
NOTHING: dict[str, Option] = {
    "delays": delay_over_time({}),
    "delays unknown": delay_over_time(intervals(2, mean_ns=[None, None])),
    "losses": loss_over_time({}),
    "no packets": loss_over_time(intervals(2, sent=[0, 0], lost=[0, 0])),
    "values": value_over_time({}, "disk writes", "operations"),
    "map": heat_map([START, START + 1], [1.0, 2.0], [[0]]),
    "ccdf": ccdf({"all": []}),
    "negative delays": ccdf({"all": [(-5.0, 1.0), (-1.0, 0.5)]}),
    "percentiles": percentile_curve({"p50_ns": None}),
    "means": flow_means([], [], [], []),
    "instances": top_instances([], [], unit="operations"),
    "path": path_breakdown(["a"], {"now": [None]}),
    "curves": curves([], x_name="rows", y_name="error"),
    "network": network([], []),
    "journey": waterfall({}),
}


def items(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Every value of an option with the key that it stands under."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from items(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from items(each, key)
    else:
        yield key, value


@pytest.mark.parametrize("name", FULL)
def test_an_option_is_json_of_known_colours_that_nothing_captured_becomes_code(name: str) -> None:
    option = FULL[name]
    assert json.loads(json.dumps(option, allow_nan=False)) == option
    assert not is_empty(option)
    assert option["aria"]["label"]["description"]
    known = {*colours(LIGHT).values(), "transparent"}
    assert {value for key, value in items(option) if key.lower().endswith("color")} <= known
    code = [str(value) for key, value in items(option) if key.startswith(":")]
    assert not any(HOSTILE in each or "onerror" in each for each in code)


@pytest.mark.parametrize("name", FULL)
def test_another_theme_has_the_same_data_in_its_own_colours(name: str) -> None:
    option, dark = FULL[name], in_theme(FULL[name], DARK)
    mine = [(key, value) for key, value in items(option) if not key.lower().endswith("color")]
    assert mine == [(key, value) for key, value in items(dark) if not key.lower().endswith("color")]
    own = {*colours(DARK).values(), "transparent"}
    assert {value for key, value in items(dark) if key.lower().endswith("color")} <= own


@pytest.mark.parametrize("name", NOTHING)
def test_a_chart_of_nothing_says_so(name: str) -> None:
    option = NOTHING[name]
    assert is_empty(option)
    assert option["title"]["text"]
    assert json.dumps(option, allow_nan=False)


def drawn(option: Option, name: str) -> Option:
    return next(each for each in option["series"] if each.get("name") == name)


def test_a_delay_that_is_not_known_breaks_its_line_and_an_interval_without_end_its_band() -> None:
    option = FULL["delays"]
    middle = (START + 2.5 * SECOND) / 1e6
    assert drawn(option, "mean")["data"][2] == [middle, None]
    band = drawn(option, "95 % interval")["data"]
    assert band[0][1:] == [19 * MS, 21 * MS]
    assert band[2][1:] == [None, None]
    assert band[5][2] is None
    assert option["legend"]["data"] == ["95 % interval", "mean", "median", "p99"]


def test_exact_means_have_no_band() -> None:
    same = intervals(2, mean_ns=[5, 6], low_ns=[5, 6], high_ns=[5, 6])
    assert [each["name"] for each in delay_over_time(same)["series"]] == ["mean"]


def test_losses_are_shares_of_the_packets_sent() -> None:
    assert [value for _, value in drawn(FULL["losses"], "lost")["data"]] == [0, 0.01, None, 0.03, 0.04, 0.05]
    assert loss_over_time(intervals(2, sent=[9, 9], lost=[0, 0]))["yAxis"]["max"] == 0.01


@pytest.mark.parametrize(
    ("values", "kind"), [([1e3, 1e8], "log"), ([1e6, 2e6], "value"), ([0, 1e8], "value"), ([-5, 1e9], "value")]
)
def test_an_axis_is_logarithmic_where_positive_values_spread_over_decades(values: list[float], kind: str) -> None:
    assert value_axis("delay", "ns", values)["type"] == kind


def test_an_axis_that_is_logarithmic_holds_all_values_between_round_numbers() -> None:
    for low, high in ((1.0, 31.0), (1478.0, 106570513.0), (3.3e-5, 1.0), (1.0, 1e12), (7.0, 7.0)):
        ticks = log_ticks(low, high)
        assert ticks[0] <= low * 1.0001, (low, high)
        assert ticks[-1] >= high * 0.9999, (low, high)
        assert 2 <= len(ticks) <= 10 or low == high


def test_an_axis_of_bytes_has_round_numbers_that_hold_all_values() -> None:
    axis = value_axis("read", "bytes", [2**23, 46.6 * 2**20])
    assert (axis["interval"], axis["max"]) == (10 * 2**20, 50 * 2**20)


def test_an_interval_that_reaches_below_zero_is_drawn_there() -> None:
    offsets = intervals(value=[0.0] * 6, low=[-5.0 * MS] * 6, high=[5.0 * MS] * 6)
    assert "min" not in value_over_time(offsets, "receiver ahead by", "ns", log=False)["yAxis"]
    assert value_over_time(intervals(value=[2.0] * 6), "reads", "operations", log=False)["yAxis"]["min"] == 0


def test_values_without_a_positive_one_are_never_logarithmic() -> None:
    assert value_axis("delay", "ns", [0, -1], log=True)["type"] == "value"


def test_the_curve_of_buckets_says_how_many_packets_take_longer() -> None:
    delays = [5, 5, 7, 9, 100]
    curve = dict(curve_of_buckets(delays, delays, [1] * 5))
    assert {x: sum(delay > x for delay in delays) / 5 for x in (7, 9, 100)} == {x: curve[x] for x in (7, 9, 100)}


def test_long_curves_keep_their_tails() -> None:
    points = [(float(x + 1), 1 / (x + 1)) for x in range(10_000)]
    kept = ccdf({"all": points})["series"][0]["data"]
    assert len(kept) <= 402
    assert kept[-200:] == [list(point) for point in points[-200:]]


def test_a_map_that_nobody_could_see_is_not_drawn() -> None:
    assert is_empty(heat_map(list(range(1000)), [float(k) for k in range(100)], []))


def test_rows_make_a_chart_higher() -> None:
    two, one = FULL["means"], FULL["instances"]
    assert height_px(two) - height_px(one) == 40
    assert height_px(empty("nothing")) == height_px(FULL["delays"])


def test_only_so_many_rows_are_ranked() -> None:
    many = [float(k) for k in range(50)]
    option = top_instances([str(k) for k in range(50)], many, many, many, unit="B")
    assert len(option["yAxis"]["data"]) == len(option["series"][0]["data"]) == 20


def test_many_segments_of_a_path_stand_together_but_for_the_large_ones_and_the_cause() -> None:
    names = [f"s{k}" for k in range(30)]
    option = path_breakdown(names, {"now": [float(k) for k in range(30)]}, cause="s1")
    shown = [each["name"] for each in option["series"]]
    assert shown == ["s1", *(f"s{k}" for k in range(20, 30)), "19 others"]
    assert sum(each["data"][0] for each in option["series"]) == sum(range(30))
    assert drawn(option, "s1")["itemStyle"]["color"] == LIGHT.vermillion


def test_a_network_without_places_is_laid_out_the_same_every_time() -> None:
    nodes, links = [Node(str(k)) for k in range(12)], [Link(k, k // 2) for k in range(1, 12)]
    assert placed(nodes, links) == placed(nodes, links)
    places = [(one.x or 0.0, one.y or 0.0) for one in placed(nodes, links)]
    width, height = (max(along) - min(along) for along in zip(*places, strict=True))
    assert width > 1.4 * height, "as wide as screens are"
    points = {(each["x"], each["y"]) for each in network(nodes, links)["series"][0]["data"]}
    assert len(points) == 12
    north, south = network([Node("n", y=9, x=0), Node("s", y=1, x=0)], [])["series"][0]["data"]
    assert north["y"] < south["y"]


def test_a_journey_ends_where_its_hops_add_up() -> None:
    option = FULL["journey"]
    assert option["series"][1]["data"][-1][1:3] == [25 * MS, 65 * MS]
    assert option["yAxis"]["data"] == ["node 17", "node 4", "node 9"]


def test_a_unit_is_never_code() -> None:
    assert "jiffies/s" in formatter("jiffies/s")
    with pytest.raises(ParameterError, match="is no unit"):
        formatter("'];alert(1)//")


def test_rows_become_columns() -> None:
    assert columns_of([]) == {}


def test_packets_that_did_not_arrive_are_marked_where_they_were_sent() -> None:
    series = {one["name"]: one["data"] for one in packet_delays(PACKETS)["series"]}
    at = [time / MS for time in PACKETS["time_ns"]]
    assert series["delay"] == [[at[0], 5 * MS], [at[2], 7 * MS]]
    assert series["lost"] == [[at[1], 0]]
    assert series["not known yet"] == [[at[3], 0]]


def test_where_no_packet_arrived_all_are_marked() -> None:
    drawn = packet_delays({"time_ns": [START], "delay_ns": [None], "fate": ["lost"]})
    assert [one["name"] for one in drawn["series"]] == ["lost"]
    assert drawn["aria"]["label"]["description"] == "1 packet, 1 lost"


def test_packets_on_a_logarithmic_axis_are_marked_at_its_foot() -> None:
    drawn = packet_delays({**PACKETS, "delay_ns": [1e3, None, 1e6, None]})
    assert drawn["yAxis"]["type"] == "log"
    assert drawn["series"][1]["data"][0][1] == drawn["yAxis"]["min"] > 0


def test_a_burst_is_as_high_as_it_has_packets() -> None:
    [series] = losses_in_bursts({"time_ns": [START, START + 5, START + SECOND], "burst": [0, 0, 1]})["series"]
    assert series["data"] == [[START / MS, 2], [(START + SECOND) / MS, 1]]
    assert is_empty(losses_in_bursts({"time_ns": [], "burst": []}))
    assert is_empty(packet_delays({"time_ns": [], "delay_ns": [], "fate": []}))
