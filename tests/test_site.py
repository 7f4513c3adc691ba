"""The documentation site: builds strictly, every link leads somewhere, nothing comes from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import sojourn

pytest.importorskip("material", reason="the site is built by mkdocs-material, of the extra `docs`")

ROOT = Path(__file__).resolve().parents[1]
NOT_YET_WRITTEN = {"install.md", "deploy.md", "threat-model.md"} | {
    f"commands/{name}.md" for name in ("config", "doctor")
}


class Page(HTMLParser):
    """What a page offers to be linked to, links to, and loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attributes}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        self.loads += [named[name] for name in ("src", "data", "poster") if name in named]
        if tag == "link" and named.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(named["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    named = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert written - named == set(), "add these pages to mkdocs.yml"
    assert named - written <= NOT_YET_WRITTEN, "mkdocs.yml names pages that do not exist"


def test_every_link_of_the_site_leads_to_a_page_and_a_place_on_it(site: Path, pages: dict[Path, Page]) -> None:
    broken, checked = [], 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are of the site's root
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            checked += 1
            where = (path.parent / unquote(target.path)).resolve() if target.path else path
            if not where.is_file():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif target.fragment and where in pages and unquote(target.fragment) not in pages[where].anchors:
                broken.append(f"{path.relative_to(site)}: {link} (no such place)")
    assert broken == []
    assert checked > 1000


def test_no_page_or_style_sheet_loads_anything_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    loads = [(path, url) for path, page in pages.items() for url in page.loads]
    for sheet in site.rglob("*.css"):
        loads += [(sheet, url) for url in re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')]+)", sheet.read_text())]
    assert len(loads) > len(pages)
    remote = [f"{path.relative_to(site)}: {url}" for path, url in loads if re.match(r"(?:\w+:)?//", url)]
    assert remote == []
    missing = {
        f"{path.relative_to(site)}: {url}"
        for path, url in loads
        if path.name != "404.html" and not url.startswith("data:") and not _file_of(path, url).is_file()
    }
    assert missing == set()


def _file_of(page: Path, url: str) -> Path:
    return page.parent / unquote(urlsplit(url).path)


def test_pages_opened_from_a_disk_can_be_searched_and_ask_no_other_host(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            page = browser.new_page()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.goto(site.joinpath("commands", "measure.html").as_uri())
            page.keyboard.press("/")
            page.keyboard.type("violation webhook")
            page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
            for other in ("index.html", "choose.html", "reference.html", "maths/lda.html"):
                page.goto(site.joinpath(other).as_uri())
        finally:
            browser.close()
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []


def test_the_reference_has_every_public_name_with_its_docstring(site: Path) -> None:
    text = site.joinpath("reference.html").read_text()
    for name in sojourn.__all__:
        if not name.startswith("_"):
            assert f'id="{name.lower()}"' in text, name
    assert "Measure delay, jitter and loss of every flow between two captures" in text


def test_pictures_say_in_words_what_they_show() -> None:
    pictures = {
        f"{page.relative_to(ROOT)}: {path}": text
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for text, path in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", page.read_text())
    }
    assert [where for where, text in pictures.items() if len(text) < 20] == []


def test_settings_of_the_site_fetch_nothing() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["strict"] is True
    assert settings["theme"]["font"] is False
    assert [url for url in settings["extra"]["polyfills"] if "//" in url] == []
