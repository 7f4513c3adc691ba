"""A Grafana dashboard of what Prometheus scrapes of a query unit: `/metrics/fleet` and its own `/metrics`.

The dashboard asks for its data source when it is imported, and has variables for the metric and the segment. All its
queries use names that readings have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 39  # of Grafana 10 and later
UID = "sojourn-fleet"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel: what it shows, by which queries (legend → expression)."""

    title: str
    queries: Mapping[str, str]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    text: str = ""


_METRIC, _SEGMENT = 'metric=~"$metric"', 'segment=~"$segment"'
_BUCKETS = f"sojourn_segment_delay_seconds_bucket{{{_SEGMENT}}}"


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, sum by (segment, le) ({_BUCKETS}))"


PANELS = (
    Panel(title="Nodes known", kind="stat", width=4, height=4, queries={"nodes": "sojourn_stored_nodes"}),
    Panel(
        title="Epochs received a second",
        kind="stat",
        width=4,
        height=4,
        queries={"{{status}}": "sum by (status) (rate(sojourn_epochs_received_total[5m]))"},
    ),
    Panel(
        title="Requests a second", kind="stat", width=4, height=4, queries={"": "sum(rate(sojourn_requests_total[5m]))"}
    ),
    Panel(
        title="Time of a query (95 %)",
        kind="stat",
        unit="s",
        width=4,
        height=4,
        queries={"": "histogram_quantile(0.95, sum by (le) (rate(sojourn_query_seconds_bucket[5m])))"},
    ),
    Panel(
        title="Beyond the limits",
        kind="stat",
        width=4,
        height=4,
        text="Nodes, instances, segments and metrics that are not among the series.",
        queries={"{{what}}": "sojourn_export_left_out"},
    ),
    Panel(
        title="Could not be read",
        kind="stat",
        width=4,
        height=4,
        queries={"{{what}}": "count(sojourn_export_failed) or vector(0)"},
    ),
    Panel(
        title="All nodes: $metric, a second",
        queries={
            "{{metric}} ({{unit}})": f"sojourn_fleet_rate{{{_METRIC}}}",
            "{{metric}} 95 % low": f"sojourn_fleet_rate_low{{{_METRIC}}}",
            "{{metric}} 95 % high": f"sojourn_fleet_rate_high{{{_METRIC}}}",
        },
    ),
    Panel(title="Largest nodes: $metric, a second", queries={"{{node}}": f"topk(10, sojourn_node_rate{{{_METRIC}}})"}),
    Panel(
        title="Largest instances: $metric, a second",
        queries={"{{key}} on {{node}}": f"topk(10, sojourn_instance_rate{{{_METRIC}}})"},
    ),
    Panel(
        title="Means: $metric",
        text="Of metrics that are sampled, such as memory and round trips.",
        queries={
            "{{metric}} on {{node}}": f"topk(10, sojourn_node_mean{{{_METRIC}}})",
            "{{metric}} of {{key}} on {{node}}": f"topk(10, sojourn_instance_mean{{{_METRIC}}})",
        },
    ),
    Panel(
        title="Delay of segments",
        unit="s",
        queries={
            "{{segment}} mean": f"sojourn_segment_delay_mean_seconds{{{_SEGMENT}}}",
            "{{segment}} median": _quantile(0.5),
            "{{segment}} p99": _quantile(0.99),
        },
    ),
    Panel(
        title="Loss of segments",
        unit="percentunit",
        queries={"{{segment}}": f"sojourn_segment_loss_ratio{{{_SEGMENT}}}"},
    ),
    Panel(
        title="Packets a second of segments",
        unit="pps",
        queries={
            "{{segment}}": f"sojourn_segment_sent_packets{{{_SEGMENT}}} / "
            f"(sojourn_segment_covered_seconds{{{_SEGMENT}}} > 0)"
        },
    ),
    Panel(
        title="Delays of $segment",
        kind="heatmap",
        unit="s",
        queries={"{{le}}": f"sum by (le) ({_BUCKETS})"},
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": UID,
        "title": "Sojourn",
        "description": "Delay, loss and use of resources of a fleet, as its query unit measures them.",
        "tags": ["sojourn"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("metric", 'label_values({__name__=~"sojourn_fleet_(rate|mean)"}, metric)'),
                _variable("segment", "label_values(sojourn_segment_covered_seconds, segment)"),
            ]
        },
        "panels": [_panel(number, panel, at) for number, (panel, at) in enumerate(_placed(PANELS), start=1)],
    }


def expressions() -> list[str]:
    """All queries of the dashboard, with its variables in them."""
    return [expression for panel in PANELS for expression in panel.queries.values()]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: Sequence[Panel]) -> Iterator[tuple[Panel, tuple[int, int]]]:
    """Panels in rows from left to right."""
    x = y = height = 0
    for panel in panels:
        if x + panel.width > _WIDTH:
            x, y, height = 0, y + height, 0
        yield panel, (x, y)
        x, height = x + panel.width, max(height, panel.height)


def _panel(number: int, panel: Panel, at: tuple[int, int]) -> dict[str, Any]:
    is_heatmap = panel.kind == "heatmap"
    options: dict[str, Any] = {}
    if is_heatmap:
        options = {"calculate": False, "yAxis": {"unit": panel.unit}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": at[0], "y": at[1], "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "format": "heatmap" if is_heatmap else "time_series",
                "instant": panel.kind == "stat",
                "range": panel.kind != "stat",
            }
            for place, (legend, expression) in enumerate(panel.queries.items())
        ],
    }
