"""`sojourn demo`: real processes that answer what is true, and nothing of them afterwards, however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from machine import live_marks
from sojourn.cli.lab.demo import goes_on
from sojourn.lab.demo.recording import write_recording
from sojourn.lab.namespaces import NAMESPACES
from sojourn.lab.routed.state import FOLDER
from waiting import PATIENCE_SECONDS, eventually

SOJOURN = [sys.executable, "-m", "sojourn.cli.main"]
JOBS = {"upgrade", "collection", "processes", "delay", "bottleneck", "objective"}
NOBODY = 65534
is_root = os.geteuid() == 0
live = live_marks("THE DEMO'S LAB IS NOT TESTED: it needs root for network namespaces")


@contextmanager
def demo(data: Path, *arguments: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A demonstration that goes on serving; ended in order at the end, if it has not been."""
    command = [*SOJOURN, "demo", "--data", str(data), "--serve", "--format", "json", *arguments]
    with open(f"{data}.err", "w") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, **how)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that it prints."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def run(data: Path, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """A demonstration without a terminal, to its end."""
    command = [*SOJOURN, "demo", "--data", str(data), *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False, **how
    )


def of_directory(data: Path) -> list[str]:
    """The processes that have a data directory on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if f"{data}/" in words and int(path.parent.name) != os.getpid():
            found.append(words)
    return found


def traces(pid: int) -> list[str]:
    """Namespaces and directories of a demonstration's lab, by its process number."""
    return sorted(
        [path.name for path in NAMESPACES.glob(f"sojourn-{pid}-*")] + [p.name for p in FOLDER.glob(f"{pid}-*")]
    )


def test_without_routers_and_pages_all_is_answered_from_a_recording(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['nicegui'] = None\n")
    data, home = tmp_path / "data", tmp_path / "home"
    home.mkdir()
    alone = {**os.environ, "HOME": str(home), "PYTHONPATH": str(tmp_path)}
    with demo(data, "--no-lab", env=alone) as process:
        answers = {}
        while (found := line(process))["job"] in JOBS:
            answers[found["job"]] = found
        assert (found["job"], found["has_pages"]) == ("dashboard", False)
        eventually(lambda: "sojourn[web]" in Path(f"{data}.err").read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0, "Ctrl-C is how serving ends"
    assert set(answers) == JOBS, Path(f"{data}.err").read_text()
    check_answers(answers, tmp_path / "again")
    assert of_directory(data) == []
    assert list(home.iterdir()) == [], "nothing outside of its data directory"


def check_answers(answers: dict[str, dict[str, Any]], again: Path) -> None:
    """Answers are those of the recording, which is the same whenever it is made."""
    truth = write_recording(again)
    assert answers["collection"]["answer"].startswith("node ")
    delay, bottleneck = answers["delay"], answers["bottleneck"]
    assert delay["low"] <= delay["value"] <= delay["high"]
    assert truth.fast_ns / 3 < delay["value"] < 3 * truth.fast_ns, "heavy tails, the first seconds of 25"
    assert truth.slow_ns / 3 < bottleneck["value"] < 3 * truth.slow_ns
    assert bottleneck["low"] > delay["high"]
    assert "paris-berlin" in answers["objective"]["answer"]
    assert 0 < answers["processes"]["value"] < 100 * (os.cpu_count() or 1) * 1.1


def test_it_goes_on_serving_where_somebody_is_at_a_terminal_or_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (True, False):
        for stream in (sys.stdin, sys.stdout):
            monkeypatch.setattr(stream, "isatty", lambda answer=is_terminal: answer)
        assert [goes_on(asked) for asked in (None, True, False)] == [is_terminal, True, False]


def test_ctrl_c_ends_it_well_while_it_serves_and_in_order_before(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for lines in (0, 1):
        with demo(data, "--no-lab") as process:
            if lines:
                assert line(process)["job"] in JOBS
            else:
                eventually((data / "serve.log").exists)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            assert process.wait(PATIENCE_SECONDS) == 130
            assert time.monotonic() - began < 10, "seconds, whatever is being computed"
        eventually(lambda: of_directory(data) == [], lambda: str(of_directory(data)))
        assert "Traceback" not in Path(f"{data}.err").read_text()


def test_one_that_was_killed_leaves_nothing_running_and_the_next_begins_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with demo(data, "--no-lab") as process:
        line(process)
        assert len(of_directory(data)) >= 2
        process.kill()
        process.wait()
    if shutil.which("setpriv"):
        eventually(lambda: of_directory(data) == [], lambda: str(of_directory(data)))
    (data / "leftover").touch()
    with demo(data, "--no-lab") as process:
        line(process)
        assert not (data / "leftover").exists()
        refused = run(data, "--no-lab")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "a demo is running here" in refused.stderr
        assert process.poll() is None


def test_a_directory_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("all of it")
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "--data" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "data", Path("/proc/nowhere")):
        done = run(place)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert "--data" in done.stderr


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(tmp_path / "data", "--port", port)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert port in done.stderr
    assert of_directory(tmp_path / "data") == []


@pytest.mark.skipif(not is_root, reason="OTHER USERS ARE NOT TESTED: it takes root to become one")
def test_another_user_without_rights_sees_it_and_is_told_what_is_missing(tmp_path: Path) -> None:
    """The user may read what root may, so that an interpreter in root's home can run, and has no other right."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    only = "-all,+dac_read_search"
    command = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    command += [f"--inh-caps={only}", f"--ambient-caps={only}", *SOJOURN, "demo", "--format", "json"]
    environment = {name: value for name, value in os.environ.items() if name != "XDG_DATA_HOME"} | {"HOME": str(home)}
    with subprocess.Popen(
        command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert line(process)["job"] in JOBS
        assert (home / ".local" / "share" / "sojourn-demo" / "demo.json").exists()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "no network of routers: it needs root" in said
    assert "Traceback" not in said


class TestLive:
    pytestmark = live

    def test_the_router_that_became_slow_is_named(self, tmp_path: Path) -> None:
        with demo(tmp_path / "data") as process:
            answers = {answer["job"]: answer for answer in (line(process) for _ in range(len(JOBS) + 1))}
            assert set(answers) == {*JOBS, "dashboard"}
            assert traces(process.pid) != []
        assert answers["bottleneck"]["answer"].startswith("inside r2,")
        assert answers["bottleneck"]["low"] > 10 * answers["delay"]["high"]
        assert traces(process.pid) == []
        assert of_directory(tmp_path / "data") == []

    @pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
    def test_nothing_of_the_lab_is_left(self, tmp_path: Path, sign: signal.Signals) -> None:
        data = tmp_path / "data"
        with demo(data) as killed:
            eventually((data / "r1" / "agent.toml").exists)
            assert traces(killed.pid) != []
            killed.send_signal(sign)
            killed.wait(PATIENCE_SECONDS)
        if sign == signal.SIGKILL:
            with demo(data, "--no-lab") as process:
                line(process)
        assert traces(killed.pid) == []
        eventually(lambda: of_directory(data) == [], lambda: str(of_directory(data)))
