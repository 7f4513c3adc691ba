#!/usr/bin/env python3
"""Take the pictures of docs/pictures: the dashboard while `sojourn demo` runs as root, and a report.

    .venv/bin/python scripts/take_pictures.py            # a demo of its own: two minutes
    .venv/bin/python scripts/take_pictures.py URL TOKEN  # a query unit that runs one

Needs Chromium, Playwright and Pillow (Matplotlib brings it). Each picture is written with 256 colours.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import sojourn

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
VIEW = {"width": 1200, "height": 960}
HISTORY_SECONDS, DRAWN_MS, LOADED_MS = 40, 2000, 120_000
MOST_BYTES = 150_000
# All panels are filled, and none says why not.
LOADED = (
    "() => document.querySelector('#content .card') && ![...document.querySelectorAll('.hint')]"
    ".some((one) => one.textContent === 'Loading …')"
    " && ![...document.querySelectorAll('.card > .notice.warn')].some((one) => one.offsetParent)"
)
PAGES = {
    "overview": "/",
    "segment": "/segment?name=r1-r3&from=-3m",
    "path": "/segment?name=r1-r2&name=in-r2&name=r2-r3&from=-3m",
    "tomography": "/collection?node=sink&name=field",
}


@contextmanager
def demo() -> Iterator[tuple[str, str]]:
    """The address and the token of a demo that has shown everything, and has gone on for a while."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sojourn", "demo", "--serve", "--format", "json", "--data", f"{folder}/demo"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                lines = map(json.loads, iter(process.stdout.readline, ""))
                found = next(line for line in lines if line["job"] == "dashboard")
                time.sleep(HISTORY_SECONDS)
                yield found["url"], found["token"]
            finally:
                process.terminate()


def take(page: Page, name: str) -> None:
    """Write what the page shows once all of it is there, smaller."""
    page.wait_for_timeout(DRAWN_MS)
    shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = FOLDER / f"{name}.png"
    shown.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size:,} bytes")
    assert path.stat().st_size < MOST_BYTES, path


def take_all(url: str, token: str) -> None:
    """The dashboard's pages, and the report of a segment."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=VIEW)
        page.goto(url)
        page.fill("input[name=token]", token)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/")
        for name, path in PAGES.items():
            page.goto(url + path)
            page.wait_for_function(LOADED, timeout=LOADED_MS)
            take(page, name)
        report = Path(folder) / "report.html"
        with sojourn.Client(url, token) as client:
            since_ns = time.time_ns() - 120 * 10**9
            sojourn.report(client.query_segment("r1-r3", from_ns=since_ns, interval_ns=10 * 10**9), report)
        page.goto(report.as_uri())
        take(page, "report")
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        take_all(*sys.argv[1:])
    else:
        with demo() as found:
            take_all(*found)
