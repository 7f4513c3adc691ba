"""Captures uploaded in a browser: measured with progress, their report shown, and gone after a while."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.web.pages.dashboard_world import Dashboard, running_dashboard
from tests.web.pages.visiting import LOOKS, PATIENCE_MS, Visit, faults, keep, looked_at, panel, visit

from sojourn.lab.small_world import write_small_world
from waiting import PATIENCE_SECONDS, eventually


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in.pcap and out.pcap of the same packets, and trace.csv of a sink."""
    folder = tmp_path_factory.mktemp("captures")
    write_small_world(folder)
    return folder


@pytest.fixture(scope="module")
def taking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with running_dashboard(tmp_path_factory.mktemp("taking"), "--uploads", "60MB", fill=False) as running:
        yield running


@pytest.fixture
def admin(browser: Browser, taking: Dashboard) -> Iterator[Visit]:
    visited = visit(browser, taking)
    yield visited
    assert not visited.complaints
    assert {url for url in visited.loaded if not url.startswith((taking.url, "data:", "blob:"))} == set()
    visited.context.close()


def measure(page: Page, sender: Path, receiver: Path | None = None) -> None:
    """Fill the form in and wait for what comes of it."""
    page.set_input_files("#capture-1", sender)
    if receiver is not None:
        page.set_input_files("#capture-2", receiver)
    page.click("button:has-text('Measure')")
    page.wait_for_url("**upload=*")
    this = panel(page, "This upload")
    expect(this.locator(".body dl.facts, .body .notice.bad").first).to_be_visible(timeout=PATIENCE_MS)


def files_of(unit: Dashboard) -> list[Path]:
    """What lies on the disk for uploads, but for the lock."""
    folder = unit.directory / "data" / "uploads"
    return [one for one in folder.rglob("*") if one.is_file() and one.name != "lock"]


@pytest.mark.parametrize("look", LOOKS)
def test_two_captures_become_the_report_of_measure(
    browser: Browser, taking: Dashboard, world: Path, look: str, axe_script: str, artifacts: Path
) -> None:
    visited = visit(browser, taking, **LOOKS[look])
    page = visited.open("/captures")
    measure(page, world / "in.pcap", world / "out.pcap")
    this = panel(page, "This upload")
    expect(this).to_contain_text("in.pcap → out.pcap")
    expect(this).to_contain_text("2,400 packets sent, 2,346 received")
    expect(panel(page, "Your uploads")).to_contain_text("open")
    looked_at(page, look, axe_script, artifacts, "captures")
    report = visited.context.new_page()
    said: list[str] = []
    report.on("console", lambda one: said.append(one.text) if one.type in ("error", "warning") else None)
    report.on("pageerror", lambda error: said.append(str(error)))
    report.goto(f"{taking.url}{this.locator('a').first.get_attribute('href')}")
    expect(report.locator("h1")).to_contain_text("in.pcap → out.pcap")
    expect(report.locator(".chart canvas, .chart svg").first).to_be_visible()
    assert str(taking.directory) not in report.content()  # nothing of this machine
    assert faults(report, axe_script) == []
    keep(report, artifacts, f"captures-report-{look}")
    assert not [one for one in said if "sandbox" not in one]
    # It has nothing of the session that it was opened with.
    assert report.evaluate("(() => { try { return document.cookie; } catch { return 'refused'; } })()") == "refused"
    assert not visited.complaints
    visited.context.close()


def test_the_report_says_what_the_command_line_says(admin: Visit, world: Path) -> None:
    page = admin.open("/captures")
    measure(page, world / "in.pcap", world / "out.pcap")
    shown = panel(page, "This upload").inner_text()
    command = [sys.executable, "-m", "sojourn", "measure", "in.pcap", "out.pcap", "--format", "json"]
    said = subprocess.run(command, cwd=world, capture_output=True, text=True, check=True)
    mean = int(said.stdout.split('"mean_ns":', 1)[1].split(",")[0].split("}")[0].strip().split(".")[0])
    assert f"{mean / 1e6:.2f} ms" in shown


def test_one_capture_is_measured_for_round_trips(admin: Visit, world: Path) -> None:
    page = admin.open("/captures")
    measure(page, world / "in.pcap")
    expect(panel(page, "This upload")).to_contain_text("sample")
    expect(panel(page, "Your uploads")).to_contain_text("round trips")


def test_swapped_captures_get_the_sentence_of_the_command_line(admin: Visit, world: Path) -> None:
    page = admin.open("/captures")
    measure(page, world / "out.pcap", world / "in.pcap")
    command = [sys.executable, "-m", "sojourn", "measure", "out.pcap", "in.pcap"]
    said = subprocess.run(command, cwd=world, capture_output=True, text=True, check=False)
    told = "most packets travel the other way: 2,400 from in.pcap to out.pcap"
    assert told in said.stderr
    expect(panel(page, "This upload").locator(".body .notice.warn")).to_contain_text(told)


def test_what_is_no_capture_is_refused_by_name(admin: Visit, world: Path, tmp_path: Path) -> None:
    page = admin.open("/captures")
    wrong = tmp_path / "<b>notes.txt"
    wrong.write_text("not a capture")
    measure(page, wrong, world / "out.pcap")
    this = panel(page, "This upload")
    expect(this.locator(".body .notice.bad")).to_contain_text("notes")
    assert this.locator("b").count() == 0
    assert "/data/uploads" not in this.inner_text()


def test_a_trace_is_reconstructed(admin: Visit, world: Path, axe_script: str, artifacts: Path) -> None:
    page = admin.open("/collections")
    page.set_input_files("#trace-file", world / "trace.csv")
    page.click("button:has-text('Reconstruct')")
    page.wait_for_url("**/collections?upload=*")
    this = panel(page, "This upload")
    expect(this).to_contain_text("delays to find", timeout=PATIENCE_MS)
    assert faults(page, axe_script) == []
    keep(page, artifacts, "trace-light")
    report = admin.open_plain(f"/report?id={page.url.split('upload=')[1]}")
    expect(report.locator("h1")).to_contain_text("Where packets waited, trace.csv")


def test_a_file_that_is_too_large_is_refused_and_leaves_nothing(
    admin: Visit, taking: Dashboard, tmp_path: Path
) -> None:
    before = files_of(taking)
    large = tmp_path / "large.pcap"
    large.write_bytes(bytes(31_000_000))
    page = admin.open("/captures")
    page.set_input_files("#capture-1", large)
    page.click("button:has-text('Measure')")
    expect(page.locator("form [role=alert]")).to_contain_text("your uploads may take 28.6 MiB together")
    eventually(lambda: len(files_of(taking)) == len(before))
    admin.complaints.clear()  # the browser's own word on a 413


def test_captures_go_once_measured_and_an_upload_when_it_is_removed(
    admin: Visit, taking: Dashboard, world: Path
) -> None:
    page = admin.open("/captures")
    measure(page, world / "in.pcap", world / "out.pcap")
    assert {one.suffix for one in files_of(taking)} <= {".html", ".json"}
    left = len(files_of(taking))
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("[data-remove]").first.click()
    page.wait_for_url("**/captures")
    eventually(lambda: len(files_of(taking)) < left)


def test_an_upload_is_shown_to_its_owner_alone(taking: Dashboard, world: Path) -> None:
    with taking.client("viewer") as client:
        begun = client.post("/api/v1/uploads", json={"kind": "rtt"}).json()
        path = f"/api/v1/uploads/{begun['id']}"
        content = (world / "in.pcap").read_bytes()
        assert client.put(f"{path}/files/capture", params={"name": "in.pcap"}, content=content).is_success
        assert client.post(f"{path}/start").is_success
        eventually(lambda: client.get(path).json()["state"] == "done")
    for who, status in (("admin", 404), ("edge", 404), ("alpha", 403)):
        with taking.client(who) as client:
            for one in (path, f"{path}/report"):
                assert client.get(one).status_code == status
            assert client.delete(path).status_code == status
    assert httpx.get(f"{taking.url}{path}").status_code == 401


def test_uploads_are_removed_in_time_and_with_the_query_unit(tmp_path: Path) -> None:
    options = ("--uploads", "8MB", "--keep-uploads", "3s")
    with running_dashboard(tmp_path, *options, fill=False) as unit, unit.client() as client:
        begun = client.post("/api/v1/uploads", json={"kind": "rtt"}).json()
        path = f"/api/v1/uploads/{begun['id']}"
        client.put(f"{path}/files/capture", params={"name": "a"}, content=b"never started")
        assert len(files_of(unit)) == 1
        eventually(lambda: client.get(path).status_code == 404)
        assert files_of(unit) == []
        client.post("/api/v1/uploads", json={"kind": "rtt"})
    assert list((tmp_path / "data" / "uploads").iterdir()) == []


def test_one_upload_does_not_stop_what_others_ask(taking: Dashboard, world: Path) -> None:
    """While two of one owner's are worked on, another's is too, and the interface answers."""
    content = (world / "in.pcap").read_bytes()
    states = {}

    def send(who: str) -> None:
        with taking.client(who) as client:
            begun = client.post("/api/v1/uploads", json={"kind": "rtt"}).json()
            path = f"/api/v1/uploads/{begun['id']}"
            client.put(f"{path}/files/capture", params={"name": "in.pcap"}, content=content)
            client.post(f"{path}/start")
            eventually(lambda: client.get(path).json()["state"] in ("done", "failed"))
            states[who] = client.get(path).json()["state"]

    threads = [threading.Thread(target=send, args=(who,)) for who in ("admin", "viewer", "edge")]
    for thread in threads:
        thread.start()
    with taking.client() as client:
        assert client.get("/api/v1/nodes").is_success
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert states == dict.fromkeys(("admin", "viewer", "edge"), "done")


def test_without_the_option_the_page_says_how_to_have_uploads(browser: Browser, empty_dashboard: Dashboard) -> None:
    visited = visit(browser, empty_dashboard)
    page = visited.open("/captures")
    expect(page.locator("#content pre").first).to_contain_text("sojourn serve --uploads")
    assert page.locator("input[type=file]").count() == 0
    visited.context.close()
    with empty_dashboard.client() as client:
        assert client.post("/api/v1/uploads", json={"kind": "rtt"}).status_code == 404


def test_another_site_cannot_send_with_a_session(taking: Dashboard) -> None:
    with httpx.Client(base_url=taking.url) as client:
        own = {"Origin": taking.url}
        client.post("/sign-in", data={"token": taking.tokens["admin"]}, headers=own)
        path = "/_sojourn/send/api/v1/uploads"
        for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            assert client.post(path, json={"kind": "rtt"}, headers=headers).status_code == 403
        assert client.post(path, json={"kind": "rtt"}, headers=own).status_code == 201
        for other in ("/_sojourn/send/api/v1/nodes/x/release", "/_sojourn/send/api/v1/segments"):
            assert client.post(other, headers=own).status_code == 405
        assert client.get(path, headers=own).status_code == 405
    assert httpx.post(f"{taking.url}{path}", json={"kind": "rtt"}, headers=own).status_code == 401
