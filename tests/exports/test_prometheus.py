"""A real Prometheus scrapes a real query unit, and answers every query of the dashboard from what it scraped."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from query_unit import LIMITS, Unit, make_epoch, running_unit
from tests.exports.fleet_data import WINDOW, FleetData, with_fleet_data, with_processes

from prometheus_server import Prometheus, running_prometheus
from sojourn.exports.grafana import PANELS, dashboard, expressions
from sojourn.exports.readings import FAMILIES
from sojourn.store.epochs import StreamRecord
from waiting import eventually


@pytest.fixture(scope="module")
def scraped_unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("data"), LIMITS)


@pytest.fixture(scope="module")
def data(scraped_unit: Unit) -> FleetData:
    return with_fleet_data(scraped_unit)


@pytest.fixture(scope="module")
def prometheus(scraped_unit: Unit, data: FleetData, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    assert data.sent
    parameters = {name: [value] for name, value in WINDOW.items()}
    place = tmp_path_factory.mktemp("prometheus") / "data"
    with running_prometheus(place, scraped_unit.url, scraped_unit.tokens["viewer"], parameters) as server:
        eventually(lambda: server.query("sojourn_segment_delay_seconds_bucket"), lambda: str(server.targets()))
        # Rates need two scrapes.
        eventually(lambda: server.query("rate(sojourn_requests_total[5m])"), lambda: str(server.targets()))
        yield server


def test_both_pages_are_scraped_without_a_fault(prometheus: Prometheus) -> None:
    assert prometheus.targets() == {"unit": ("up", ""), "fleet": ("up", "")}


def test_totals_and_the_largest_instances_are_what_was_measured(prometheus: Prometheus) -> None:
    seconds = 600
    assert prometheus.value('sojourn_fleet_rate{metric="disk_io"}') == pytest.approx((9 + 90) * 4 / seconds)
    assert prometheus.value('sojourn_node_rate{metric="disk_io",node="beta"}') == pytest.approx(360 / seconds)
    largest = prometheus.query('topk(1, sojourn_instance_rate{metric="disk_io"})')
    assert (largest[0]["metric"]["node"], largest[0]["metric"]["key"]) == ("beta", "p[0]")
    assert float(largest[0]["value"][1]) == pytest.approx(200 / seconds, rel=0.2)
    assert prometheus.value('sojourn_node_mean{metric="memory",node="alpha"}') == 2000
    assert prometheus.query('sojourn_node_rate{metric="packets"}') == []


def test_delays_and_losses_of_a_segment_are_the_true_ones(prometheus: Prometheus, data: FleetData) -> None:
    assert prometheus.value("sojourn_segment_sent_packets") == data.sent
    assert prometheus.value("sojourn_segment_lost_packets") == data.lost
    assert prometheus.value("sojourn_segment_delay_seconds_gcount") == pytest.approx(data.sent - data.lost)
    # Nothing goes back, so what is known of the clock is that no delay is below 0.
    offset = prometheus.value("sojourn_segment_delay_mean_seconds") - data.delays_ns.mean() / 1e9
    assert abs(offset) < 0.001
    for share in (0.5, 0.9):
        found = prometheus.value(f"histogram_quantile({share}, sojourn_segment_delay_seconds_bucket)")
        true = np.quantile(data.delays_ns, share) / 1e9
        assert true / 2.5 <= found <= true * 2.5  # the widest bucket is from 2 to 5


def test_every_query_of_the_dashboard_is_answered_from_real_data(prometheus: Prometheus) -> None:
    asked = [one.replace("$metric", ".+").replace("$segment", ".+") for one in expressions()]
    assert "$" not in " ".join(asked)
    assert [expression for expression in asked if not prometheus.query(expression)] == []


def test_the_dashboards_variables_have_the_values_that_are_there(prometheus: Prometheus) -> None:
    variables = dashboard()["templating"]["list"][1:]
    asked = [re.fullmatch(r"label_values\((.*), (\w+)\)", one["definition"]).groups() for one in variables]  # type: ignore[union-attr]
    found = {label: prometheus.label_values(label, series) for series, label in asked}
    assert found == {"metric": ["disk_io", "memory"], "segment": ["ab"]}


def test_the_dashboard_names_no_series_that_is_not_exported() -> None:
    own = ("sojourn_epochs_received", "sojourn_requests", "sojourn_query_seconds", "sojourn_stored_nodes")
    names = set(re.findall(r"sojourn_\w+", " ".join(expressions())))
    assert len(names) > len(own)
    assert {
        name for name in names if name.removesuffix("_bucket") not in FAMILIES and not name.startswith(own)
    } == set()


def test_panels_do_not_overlap_and_the_document_is_json() -> None:
    document = json.loads(json.dumps(dashboard()))
    cells = [
        (x, y)
        for panel in document["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in document["panels"]}) == len(PANELS)


def scraped(unit: Unit, **parameters: object) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The samples of each name, as Prometheus' own parser reads them."""
    with unit.client("viewer") as client:
        response = client.get(
            "/metrics/fleet",
            params={**WINDOW, **parameters},  # type: ignore[dict-item]
            headers={"Accept": "application/openmetrics-text"},
        )
    assert response.status_code == httpx.codes.OK, response.text
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), float(sample.value)))
    return found


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    """A unit with four nodes, one of which has a tag."""
    running = running_unit(tmp_path_factory.mktemp("larger"), LIMITS)
    unit = next(running)
    with_processes(unit, nodes=("a", "b", "c", "d"))
    unit.store.set_tags("b", ["roof"])
    yield unit
    next(running, None)


def test_of_many_the_largest_are_named_and_the_rest_counted(larger: Unit) -> None:
    found = scraped(larger, nodes=2, top=3)
    assert [labels["node"] for labels, _ in found["sojourn_node_rate"]] == ["d", "c"]
    assert [(labels["node"], labels["key"]) for labels, _ in found["sojourn_instance_rate"]] == [
        ("d", "p[0]"),
        ("d", "p[1]"),
        ("d", "p[2]"),
    ]
    left_out = {labels["what"]: value for labels, value in found["sojourn_export_left_out"]}
    assert left_out == {"metrics": 0, "nodes": 2, "instances": 9, "segments": 0}
    assert "sojourn_instance_rate" not in scraped(larger, top=0)


def test_only_nodes_with_a_tag_if_one_is_given(larger: Unit) -> None:
    found = scraped(larger, tag="roof")
    assert {labels["node"] for labels, _ in found["sojourn_node_rate"]} == {"b"}
    assert "sojourn_node_mean" not in found
    assert "sojourn_node_rate" not in scraped(larger, tag="nobody")


def test_nothing_measured_is_an_answer_and_not_a_fault(tmp_path: Path) -> None:
    running = running_unit(tmp_path / "data", LIMITS)
    unit = next(running)
    assert set(scraped(unit)) == {"sojourn_export_window_seconds", "sojourn_export_left_out"}
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    unit.store.add([make_epoch(0, time_ns=10**18)])  # long ago
    assert "sojourn_node_rate" not in scraped(unit, top=1)
    with unit.client("viewer") as client:
        for wrong, words in (
            ({"window": "0s"}, "is not among 1 s … 1 h"),
            ({"window": "much"}, "not a duration"),
            ({"top": 101}, "less than or equal to 100"),
            ({"lag": "2h"}, "is not among 0 s … 1 h"),
        ):
            response = client.get("/metrics/fleet", params=wrong)
            assert (response.status_code in (400, 422), words in response.json()["detail"]) == (True, True), (
                response.text
            )
    with unit.client("alpha") as node, unit.client(None) as nobody:
        assert node.get("/metrics/fleet").status_code == httpx.codes.FORBIDDEN
        assert nobody.get("/metrics/fleet").status_code == httpx.codes.UNAUTHORIZED
    next(running, None)


def test_what_a_scraper_did_not_wait_for_is_there_at_its_next_try(larger: Unit) -> None:
    asked = {**WINDOW, "top": 99}
    with larger.client("viewer") as client, pytest.raises(httpx.ReadTimeout):
        client.get("/metrics/fleet", params=asked, timeout=0.01)
    ago = time.monotonic()
    assert scraped(larger, top=99)["sojourn_node_rate"]
    began = time.monotonic()
    assert scraped(larger, top=99)["sojourn_node_rate"]
    assert time.monotonic() - began < max(began - ago, 0.5)
