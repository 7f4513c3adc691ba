"""Networks in a browser: a topology is stored, drawn with what was measured, planned in, and still there later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.web.pages.dashboard_world import Dashboard, running_dashboard
from tests.web.pages.network_world import (
    SILENT,
    SLOW,
    large_network,
    measure_network,
    store_network,
    topology_file,
)
from tests.web.pages.visiting import LOOKS, PATIENCE_MS, Visit, look_at, panel, visit

PATH = "/network?name=ring&source=r2&target=r5"
PLAN = "/network?name=ring&strategy=best&count=6&must=r3&exclude=r0"
PAGES = {"networks": "/networks", "network": "/network?name=ring", "network_path": PATH, "network_plan": PLAN,
         "network_large": "/network?name=large&strategy=greedy&count=20"}  # fmt: skip
# Both ends of a slider's way, as a hand would move it.
MOVE = """(value) => {
  const slider = document.querySelector('#slider-at');
  slider.value = value;
  slider.dispatchEvent(new Event('input', {bubbles: true}));
}"""
CHART = "getElement(Number(document.querySelector('[data-panel=Map] .nicegui-echart').id.slice(1))).chart"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with running_dashboard(tmp_path_factory.mktemp("networks"), fill=False) as running:
        store_network(running)
        store_network(running, "large", large_network(), "large.csv")
        measure_network(running)
        yield running


@pytest.fixture
def admin(browser: Browser, measured: Dashboard) -> Iterator[Visit]:
    visited = visit(browser, measured)
    yield visited
    assert not visited.complaints
    assert {url for url in visited.loaded if not url.startswith((measured.url, "data:"))} == set()
    visited.context.close()


def colours(page: Page) -> list[tuple[str, str, str]]:
    """Each link of the map by its ends, with its colour."""
    return page.evaluate(
        f"(() => {{ const one = {CHART}.getOption().series[0]; return one.links.map((link) => "
        "[one.data[link.source].name, one.data[link.target].name, link.lineStyle.color]); })()"
    )


@pytest.mark.parametrize("look", LOOKS)
def test_network_pages_are_accessible_in_every_look(
    browser: Browser, measured: Dashboard, look: str, axe_script: str, artifacts: Path
) -> None:
    look_at(browser, measured, look, PAGES, axe_script, artifacts)


def test_a_topology_is_uploaded_and_removed_by_an_admin(admin: Visit, tmp_path: Path) -> None:
    page = admin.open("/networks")
    page.set_input_files("#topology-file", topology_file(tmp_path))
    page.fill("#topology-name", "mine")
    page.click("button:has-text('Store')")
    page.wait_for_url("**/network?name=mine")
    expect(page.locator("[data-panel=Map]")).to_contain_text("136 segments measured")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("button:has-text('Remove this topology')")
    page.wait_for_url("**/networks")
    expect(panel(page, "Topologies")).to_contain_text("ring")
    expect(panel(page, "Topologies")).not_to_contain_text("mine")


def test_what_is_no_topology_is_refused_with_the_words_of_the_command_line(
    browser: Browser, measured: Dashboard, tmp_path: Path
) -> None:
    visited = visit(browser, measured)
    page = visited.open("/networks")
    path = tmp_path / "bad.csv"
    for text, why in (("a,b\n1,2\n", "bad.csv:1: the first line does not name the columns"), ("", "bad.csv:1")):
        path.write_text(text)
        page.set_input_files("#topology-file", path)
        page.click("button:has-text('Store')")
        expect(page.locator("form [role=alert]")).to_contain_text(why)
    visited.context.close()


def test_the_map_has_the_slow_link_in_the_colour_of_slow_ones(admin: Visit) -> None:
    page = admin.open("/network?name=ring")
    drawn = {frozenset(ends): colour for *ends, colour in colours(page)}
    others = {colour for ends, colour in drawn.items() if ends not in (frozenset(SLOW), frozenset(SILENT))}
    assert drawn[frozenset(SLOW)] not in others
    assert drawn[frozenset(SILENT)] not in {*others, drawn[frozenset(SLOW)]}
    rows = panel(page, "Segments measured").locator(".ag-center-cols-container [role=row]")
    expect(rows.nth(0)).to_contain_text("silent")
    expect(rows.nth(1)).to_contain_text("slower")


def test_a_path_is_picked_and_its_slow_segment_named(admin: Visit) -> None:
    page = admin.open("/network?name=ring")
    page.fill("#path-source", "r2")
    page.fill("#path-target", "r5")
    page.click("form:has(#path-source) button")
    page.wait_for_url("**source=r2&target=r5*")
    found = panel(page, "Where packets wait")
    expect(found).to_contain_text("changed")
    expect(found.locator(".notice.bad")).to_contain_text("r4>r5: delay +6", timeout=PATIENCE_MS)
    expect(found.locator(".chart canvas")).to_have_count(1)
    assert page.locator("#routers option").count() == 12
    nowhere = admin.open("/network?name=ring&source=r2&target=elsewhere")
    expect(panel(nowhere, "Where packets wait")).to_contain_text("there is no router 'elsewhere'")


def test_the_slider_goes_over_the_plan_without_asking_again(admin: Visit) -> None:
    page = admin.open(PLAN)
    plan = panel(page, "Plan")
    expect(plan).to_contain_text("6 of 6")
    last = int(re.sub(r"\D", "", plan.locator("dd").nth(1).evaluate("(one) => one.childNodes[0].textContent")))
    page.evaluate("window.wasHere = true")
    page.evaluate(MOVE, 1)
    expect(plan.locator("output")).to_have_text("1 of 6", timeout=PATIENCE_MS)
    expect(plan).to_contain_text("Upgrade r3.")  # which must be
    fewer = int(re.sub(r"\D", "", plan.locator("dd").nth(1).evaluate("(one) => one.childNodes[0].textContent")))
    assert fewer > last
    assert page.evaluate("window.wasHere")
    assert "at=1" in page.url
    again = admin.open(page.url.removeprefix(admin.url))
    expect(panel(again, "Plan").locator("output")).to_have_text("1 of 6")
    assert "r0" not in panel(again, "Steps").locator(".ag-center-cols-container").inner_text().split()


def test_a_plan_for_traffic_reduces_what_that_crosses(admin: Visit) -> None:
    page = admin.open("/network?name=ring&strategy=best&count=2&traffic=from,to,weight%0Ar0,r4,5%0A")
    expect(panel(page, "Plan")).to_contain_text("Traffic × hops")
    wrong = admin.open("/network?name=ring&strategy=best&count=2&traffic=from,to,weight%0Ar0,x,5%0A")
    expect(panel(wrong, "Plan")).to_contain_text("traffic:2: there is no router 'x'")


def test_four_hundred_routers_are_drawn(admin: Visit) -> None:
    page = admin.open("/network?name=large")
    assert len(page.evaluate(f"{CHART}.getOption().series[0].data")) == 400


def test_viewers_look_and_only_admins_store(browser: Browser, measured: Dashboard) -> None:
    visited = visit(browser, measured, "viewer")
    page = visited.open("/networks")
    expect(panel(page, "Topologies")).to_contain_text("ring")
    assert page.locator("form[data-upload]").count() == 0
    assert visited.open("/network?name=ring").locator("[data-remove]").count() == 0
    visited.context.close()
    for who, status in (("viewer", 403), ("alpha", 403)):
        with measured.client(who) as client:
            answer = client.put("/api/v1/topologies/x", params={"file_name": "x.csv"}, content=b"source")
            assert answer.status_code == status
    some = visit(browser, measured, "edge")
    page = some.open("/networks")
    expect(page.locator("#content")).to_contain_text("the token is for the nodes of edge")
    some.context.close()


def test_topologies_survive_a_restart(tmp_path: Path) -> None:
    with running_dashboard(tmp_path, fill=False) as running:
        store_network(running)
        tokens = running.tokens
    with running_dashboard(tmp_path, fill=False) as again:
        headers = {"Authorization": f"Bearer {tokens['admin']}"}
        answer = httpx.get(f"{again.url}/api/v1/topologies/ring", headers=headers, timeout=60)
        assert len(answer.json()["routers"]) == 12
