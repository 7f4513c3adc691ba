"""A signed-in browser at the dashboard: what it opens, what it complains of, what it loads, what it looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Locator, Page
from tests.web.pages.dashboard_world import Dashboard

PATIENCE_MS = 60_000
LOADED = (
    "() => document.querySelector('#content .card') && ![...document.querySelectorAll('.hint')]"
    ".some((one) => one.textContent === 'Loading …') && !document.querySelector('#popup[aria-hidden=false]')"
)
# Tables fill themselves a moment after their panels: until then they have neither names nor cells.
DRAWN = "() => [...document.querySelectorAll('.nicegui-aggrid')].every((one) => one.innerText.trim())"
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter((one) => ['serious', 'critical'].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 200)}`)"""
LOOKS = {
    "light": {"viewport": {"width": 1360, "height": 850}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1360, "height": 850}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}


@dataclass
class Visit:
    """A signed-in browser, and all that it complained of or loaded."""

    context: BrowserContext
    url: str
    complaints: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """A page, with all its panels filled."""
        page = self.open_plain(path)
        page.wait_for_function(LOADED)
        return page

    def open_plain(self, path: str) -> Page:
        """A page without panels, such as a report."""
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: said.type in ("error", "warning") and self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.loaded.append(request.url))
        page.goto(f"{self.url}{path}")
        return page


def visit(browser: Browser, dashboard: Dashboard, who: str = "admin", **context: object) -> Visit:
    opened = browser.new_context(timezone_id="Europe/Berlin", **context)
    page = opened.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{dashboard.url}/sign-in")
    page.fill("#token", dashboard.tokens[who])
    page.keyboard.press("Enter")
    page.wait_for_selector("#content")
    page.close()
    return Visit(opened, dashboard.url)


def look_at(
    browser: Browser, dashboard: Dashboard, look: str, pages: Mapping[str, str], axe_script: str, artifacts: Path
) -> None:
    """Pages by name, in one of `LOOKS`: each is fit for all people and for its screen, and is kept as a picture.

    None complains of anything, or loads from elsewhere.
    """
    visited = visit(browser, dashboard, **LOOKS[look])
    for name, path in pages.items():
        page = visited.open(path)
        looked_at(page, look, axe_script, artifacts, name)
        assert page.locator(".notice:visible", has_text="Something went wrong").count() == 0, name
        page.close()
    assert not visited.complaints
    assert visited.loaded
    assert {url for url in visited.loaded if not url.startswith((dashboard.url, "data:"))} == set()
    visited.context.close()


def looked_at(page: Page, look: str, axe_script: str, artifacts: Path, name: str) -> None:
    """Keep the picture of a page that is fit for all people, for its screen, and drawn for its theme."""
    found = faults(page, axe_script)
    assert not found, f"{name}: {found}"
    wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert not wide, f"{name} is wider than the screen"
    assert page.evaluate("document.documentElement.classList.contains('dark')") == (look == "dark")
    keep(page, artifacts, f"{name}-{look}")


def panel(page: Page, title: str) -> Locator:
    return page.locator(f"[data-panel='{title}']")


def keep(page: Page, folder: Path, name: str) -> None:
    page.screenshot(path=folder / f"{name}.png", full_page=True)


def faults(page: Page, axe_script: str) -> list[str]:
    """What keeps some people from using a page, once its tables are drawn."""
    page.wait_for_function(DRAWN)
    page.evaluate(axe_script)
    return page.evaluate(SERIOUS)
