"""`sojourn top` on real interfaces: a router's traffic through a bottleneck, on paper, in JSON and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from typing import Any

import pytest

from live_hosts import wait_for_listener
from machine import live_marks
from sojourn.core.units import plural
from sojourn.lab.namespaces import Bottleneck, Host, Network, two_hosts
from waiting import PATIENCE_SECONDS

pytestmark = live_marks("TOP IS NOT TESTED LIVE: it needs root for packet sockets and network namespaces")

RATE, SENT_RATE = 4_000_000, 5_000_000
QUEUE_BYTES = 20_000  # 40 ms
# What would have a say about the size of a terminal; pytest-xdist sets them.
SIZES = ("COLUMNS", "LINES")
TOP = (sys.executable, "-m", "sojourn.cli.main", "top")
Row = dict[str, Any]


@pytest.fixture(scope="module")
def router() -> Iterator[Host]:
    """A router before a bottleneck that a stream of datagrams overfills, and pings that wait behind it."""
    with two_hosts(bottleneck=Bottleneck(RATE, queue_bytes=QUEUE_BYTES), router=True) as network:
        assert network.router is not None
        start_traffic(network)
        yield network.router


def start_traffic(network: Network) -> None:
    address = network.receiver.address
    network.receiver.start("iperf3", "-s", "-p", "5201")
    wait_for_listener(network.receiver, 5201)
    network.sender.start("iperf3", "-c", address, "-t", "600", "-u", "-b", str(SENT_RATE), "-l", "1000")
    network.sender.start("ping", "-i", "0.05", address)


def on(host: Host, *arguments: str) -> str:
    return host.run(*TOP, *arguments)


def by_protocol(frame: Row) -> dict[str, Row]:
    return {row["protocol"]: row for row in frame["flows"] if row["packets"] > 5}


def test_between_two_interfaces_every_packet_is_matched(router: Host) -> None:
    frame = json.loads(on(router, "-i", "left", "-i", "right", "--once", "--format", "json"))
    assert frame["of"] == "left → right"
    assert frame["span_ns"] == 2 * 10**9
    rows = by_protocol(frame)
    stream, pings = rows["udp"], rows["icmp"]
    assert stream["packets"] == stream["samples"] + stream["lost"]
    assert stream["loss"] == pytest.approx(1 - RATE / SENT_RATE, abs=0.1)
    assert stream["bits_per_second"] == pytest.approx(SENT_RATE, rel=0.2)
    for row in (stream, pings):
        assert 10e6 < row["mean_ns"] < 60e6  # what waits in the queue
        assert row["mean_ns"] <= row["p99_ns"] < 80e6
    assert pings["packets_per_second"] == pytest.approx(20, rel=0.4)
    assert frame["total"]["loss"] == pytest.approx(stream["loss"], abs=0.05)
    assert [row["mean_ns"] for row in frame["flows"]] == sorted((r["mean_ns"] for r in frame["flows"]), reverse=True)


def test_one_interface_shows_rates_and_round_trips(router: Host) -> None:
    frame = json.loads(on(router, "-i", "left", "--once", "--format", "json", "udp or icmp"))
    busiest = frame["flows"][0]
    assert busiest["protocol"] == "udp"
    assert busiest["bits_per_second"] == pytest.approx(SENT_RATE, rel=0.2)
    assert "loss" not in busiest
    answered = [row for row in frame["flows"] if row["mean_ns"] is not None]
    assert {row["protocol"] for row in answered} == {"icmp"}
    assert all(10e6 < row["mean_ns"] < 80e6 for row in answered)


def test_without_a_terminal_one_frame_is_printed(router: Host) -> None:
    said = on(router, "-i", "left", "-i", "right", "--interval", "500ms", "--sort", "loss", "--limit", "1")
    head, total, blank, titles, row, *more = said.splitlines()
    assert re.fullmatch(r"left → right  \d\d:\d\d:\d\d  \d flows", head)
    assert re.fullmatch(r"[\d,]+/s packets, [\d.]+ Mbit/s, delay [\d.]+ ms, p99 [\d.]+ ms, loss [\d.]+%", total)
    assert blank == ""
    assert "▼ loss" in titles
    assert " > " in row
    flows = int(re.findall(r"(\d+) flows?", head)[0])
    assert more == [f"… and {plural(flows - 1, 'flow')} more"]


def test_json_goes_on_until_ctrl_c(router: Host) -> None:
    with router.start(*TOP, "-i", "left", "--interval", "200ms", "--format", "json", stdout=subprocess.PIPE) as top:
        assert top.process.stdout is not None
        lines = [json.loads(top.process.stdout.readline()) for _ in range(3)]
        top.process.send_signal(signal.SIGINT)
        assert top.process.wait(PATIENCE_SECONDS) == 0
    assert lines[0]["end_ns"] < lines[1]["end_ns"] < lines[2]["end_ns"]


def test_a_filter_that_nothing_passes_says_what_to_do(router: Host) -> None:
    one = json.loads(on(router, "-i", "left", "--once", "--interval", "200ms", "--format", "json", "tcp port 9"))
    assert (one["flows"], len(one["notes"])) == ([], 1)
    assert "no IP packet passed left for 200 ms" in one["notes"][0]
    said = on(router, "-i", "right", "-i", "left", "--once", "--interval", "200ms", "--directions", "in,in", "udp")
    assert "no packet was seen at both interfaces so far" in said


class Terminal:
    """A command on a terminal of some size."""

    def __init__(self, host: Host, *arguments: str, columns: int = 110, rows: int = 24) -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *host.within(*arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={name: value for name, value in os.environ.items() if name not in SIZES} | {"TERM": "xterm"},
        )
        self.text = ""

    def read_until(self, pattern: str) -> str:
        """What was written since the last time, until it shows what is waited for."""
        since, end = len(self.text), time.monotonic() + PATIENCE_SECONDS
        while not re.search(pattern, self.text[since:]):
            assert time.monotonic() < end, self.text[since:]
            if select.select([self.master], [], [], 0.5)[0]:
                self.text += os.read(self.master, 65536).decode(errors="replace")
        return self.text[since:]

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def finish(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        while select.select([self.master], [], [], 0.2)[0]:
            self.text += os.read(self.master, 65536).decode(errors="replace")
        assert termios.tcgetattr(self.slave) == self.before
        os.close(self.master)
        os.close(self.slave)
        return code


LEFT_SCREEN = "\x1b[?1049l"


@pytest.mark.parametrize("keys", ["q", "\x03"], ids=["q", "Ctrl-C"])
def test_a_terminal_is_as_before_when_it_quits(router: Host, keys: str) -> None:
    terminal = Terminal(router, *TOP, "-i", "left", "-i", "right", "--interval", "300ms", "--max-delay", "200ms")
    terminal.read_until("measuring")
    terminal.read_until("▼ delay")
    terminal.press("l")
    terminal.read_until("▼ loss")
    terminal.press("r")
    assert re.search("[▁▂▃▄▅▆▇█]", terminal.read_until("(?s)▼ rate.*[▁▂▃▄▅▆▇█]"))
    began = time.monotonic()
    terminal.press(keys)
    assert terminal.finish() == 0
    assert time.monotonic() - began < 3
    assert LEFT_SCREEN in terminal.text
    assert "\x1b[?25h" in terminal.text  # the cursor is shown again


def test_a_narrow_terminal_shows_what_matters(router: Host) -> None:
    terminal = Terminal(router, *TOP, "-i", "left", "-i", "right", "--interval", "300ms", columns=40, rows=6)
    terminal.read_until("▼ delay")
    shown = terminal.read_until("…")
    terminal.press("q")
    assert terminal.finish() == 0
    lines = [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", line) for line in re.split(r"\r\n|\x1b\[H", shown)]
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("other", [(), ("-i", "left")], ids=["one", "two"])
def test_an_interface_that_goes_away_ends_it_with_an_error(router: Host, other: tuple[str, ...]) -> None:
    router.run("ip", "link", "add", "gone", "type", "veth", "peer", "name", "peer")
    router.run("ip", "link", "set", "gone", "up")
    terminal = Terminal(router, *TOP, *other, "-i", "gone", "--interval", "200ms")
    terminal.read_until(r"gone\S*  \d\d:\d\d")
    router.run("ip", "link", "del", "gone")
    assert terminal.finish() == 1
    said = terminal.text.split(LEFT_SCREEN)[-1]
    assert re.search(r"sojourn: gone: .*\r\n", said)
    assert "Traceback" not in said


def test_a_termination_leaves_the_terminal_as_it_was(router: Host) -> None:
    terminal = Terminal(router, *TOP, "-i", "left", "--interval", "200ms")
    terminal.read_until("▼ rate")
    terminal.process.terminate()
    assert terminal.finish() == 0
    assert LEFT_SCREEN in terminal.text
