"""A segment's page where points keep ledgers: lost packets one by one, and a flow's packets with their delays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from ledger_nodes import both, chosen
from playwright.sync_api import Browser, expect
from tests.segments.fleet.fleet_world import SECOND, record
from tests.segments.fleet.ledgers.test_ledger_ranges import PLAN, world_of
from tests.web.pages.dashboard_world import Dashboard, timely
from tests.web.pages.visiting import LOOKS, faults, keep, panel, visit

from sojourn.client.query_unit import Client
from sojourn.core.errors import SojournError
from sojourn.lab.two_point import TwoPointWorld
from sojourn.node.agent.configuration import configuration_of
from sojourn.node.agent.running import transport_for
from sojourn.node.transports.transport import Transport
from waiting import eventually


def transport(dashboard: Dashboard, node: str) -> Transport:
    table = {"node": node, "server": dashboard.url, "token": dashboard.tokens[node], "spool": "unused"}
    return transport_for(configuration_of(table, where="test"), None)


@pytest.fixture(scope="module")
def world(dashboard: Dashboard) -> Iterator[TwoPointWorld]:
    """A segment whose runs are named by its nodes, which go on answering."""
    found = timely(world_of(9, loss=0.02), SECOND)
    with Client(dashboard.url, dashboard.tokens["admin"]) as admin:
        admin.create_segment("exact", "alpha:eth5", "beta:eth5", epoch_ns=5 * SECOND, sketch="ledger")
        [direction] = admin.segment("exact")["directions"]
        for end, batch in (("from", found.sender), ("to", found.receiver)):
            node, stream = direction[end]["node"], direction[end]["stream"]
            epochs = record(batch, PLAN, found, node=node)
            dashboard.send([replace(epoch, stream=stream) for epoch in epochs])
        ends = transport(dashboard, "alpha"), transport(dashboard, "beta")
        with both(ends, found, ahead_ns=0):

            def is_named() -> bool:
                try:
                    return admin.lost_packets("exact", 0).lost > 0
                except SojournError:
                    return False

            eventually(is_named)
            yield found


@pytest.mark.parametrize("look", LOOKS)
def test_lost_packets_and_a_flows_packets_are_shown(
    browser: Browser, dashboard: Dashboard, world: TwoPointWorld, look: str, axe_script: str, artifacts: Path
) -> None:
    visited = visit(browser, dashboard, **LOOKS[look])
    text, _ = chosen(world)
    page = visited.open(f"/segment?name=exact&flow={quote(text)}")
    lost = panel(page, "Lost packets")
    expect(lost.locator("dl")).to_contain_text("Bursts")
    expect(lost.locator(".ag-center-cols-container [role=row]").first).to_be_visible()
    with Client(dashboard.url, dashboard.tokens["viewer"]) as viewer:
        true = viewer.lost_packets("exact", 0)
    expect(lost.locator("dl")).to_contain_text(f"{true.lost:,}")
    packets = panel(page, "Its packets")
    expect(packets.locator("dl")).to_contain_text("p99")
    expect(packets.locator(".chart")).to_have_attribute(
        "aria-label", re.compile(r"[0-9,]+ packets, [0-9,]+ lost, delays between")
    )
    assert faults(page, axe_script) == []
    wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert not wide
    keep(page, artifacts, f"ledgers-{look}")
    assert not visited.complaints
    visited.context.close()


def test_a_segment_without_ledgers_says_how_to_have_them(browser: Browser, dashboard: Dashboard) -> None:
    visited = visit(browser, dashboard)
    page = visited.open("/segment?name=uplink")
    expect(panel(page, "Lost packets")).to_contain_text("--sketch ledger")
    visited.context.close()
