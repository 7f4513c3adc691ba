"""A report as a browser opens it from the disk, and what it said and asked for there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page


@dataclass
class Opened:
    """A page, and what it said and asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def opened(browser: Browser, path: Path, *, scheme: str = "light", width: int = 1280) -> Iterator[Opened]:
    """The report as it opens from the disk; afterwards it has said nothing and asked for nothing but itself."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, timezone_id="UTC", locale="en-GB"
    )
    page = context.new_page()
    found = Opened(page)
    page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.said.append(str(error)))
    page.on("dialog", lambda dialog: (found.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: found.asked.append(request.url))
    try:
        page.goto(path.as_uri())
        yield found
        assert found.said == [], found.said
        assert set(found.asked) == {path.as_uri()}, found.asked
    finally:
        context.close()
