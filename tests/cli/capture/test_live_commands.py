"""Live commands: how they start, stop and refuse; what a kill leaves; which way is measured."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from live_hosts import wait_for_captures
from machine import needs_root
from sojourn.cli.main import app
from sojourn.core.errors import SojournError, WireError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import read_epochs
from sojourn.lab.namespaces import Host, HostProcess, Network, two_hosts
from waiting import PATIENCE_SECONDS, eventually

with_root = needs_root("LIVE COMMANDS ARE NOT TESTED: they need root for packet sockets and network namespaces")
pytestmark = pytest.mark.live

SOJOURN = (sys.executable, "-m", "sojourn.cli.main")


def refusal(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, SojournError), result.output
    assert result.stdout == ""
    return result.exception.exit_code, str(result.exception)


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("measure", 2, "measure: two points are needed; give captures SENDER RECEIVER, or -i IFACE -i IFACE"),
        ("measure one.pcap", 2, "measure: two points are needed"),
        ("measure -i lo", 2, "measure: 1 interface given; give two: -i SENDER_IFACE -i RECEIVER_IFACE"),
        ("measure -i lo -i lo -i lo", 2, "measure: 3 interfaces given"),
        (f"measure -i lo -i lo {__file__}", 2, f"{__file__} is a file, beside -i; give files or interfaces, not both"),
        (
            "measure -i lo -i lo --interval 1s",
            2,
            "--interval is for captures: interfaces have one clock and are read once",
        ),
        (
            "measure -i lo -i lo --clock offset=1ms",
            2,
            "--clock is for captures: interfaces have one clock and are read once",
        ),
        ("measure -i lo -i lo --directions up,in", 2, "--directions: 'up,in' are no two directions"),
        (
            "measure a.pcap b.pcap --for 1s",
            2,
            "--for is for a live capture; give -i SENDER_IFACE -i RECEIVER_IFACE, or leave it out",
        ),
        ("rtt -i lo -", 2, "rtt: - is a file, beside -i"),
        ("rtt -i lo --for soon", 2, "'soon' is not a duration"),
        ("rtt -i lo --for 0s", 2, "--for: '0s' is no time to capture for; give more than 0"),
        ("rtt -i lo --buffer 4KB", 2, "--buffer: a buffer of 4000 bytes is too small; give 524288 or more"),
        ("flows -c 5 a.pcap", 2, "flows: --for, --count, --promiscuous and --buffer are for a live capture"),
        ("record -i lo", 2, "there is no file to write to"),
        ("rtt -i lo port and", 2, "can't parse filter expression"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(command: str, code: int, text: str) -> None:
    said = refusal(*command.split(" "))
    assert said[0] == code
    assert text in said[1]
    assert "\n" not in said[1]


@with_root
def test_missing_interfaces_and_permissions_are_told_in_one_line(tmp_path: Path) -> None:
    commands = (
        ["rtt", "-i", "nowhere0"],
        ["flows", "-i", "nowhere0"],
        ["record", "-i", "nowhere0", "-w", str(tmp_path / "x.epochs")],
        ["measure", "-i", "lo", "-i", "nowhere0"],
    )
    for command in commands:
        code, text = refusal(*command)
        assert code == 1
        assert "nowhere0: no such interface; choose one of " in text
    assert not (tmp_path / "x.epochs").exists()
    os.seteuid(65534)
    try:
        assert "lo: no permission to capture; run as root" in refusal("measure", "-i", "lo", "-i", "lo")[1]
    finally:
        os.seteuid(0)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with two_hosts(router=True) as hosts:
        yield hosts


def router_of(network: Network) -> Host:
    assert network.router is not None
    return network.router


def start(host: Host, *arguments: str) -> HostProcess:
    return host.start(*SOJOURN, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def outcome(running: HostProcess) -> tuple[int, str, str]:
    out, err = running.process.communicate(timeout=PATIENCE_SECONDS)
    return running.process.returncode, out, err


def is_caught(running: HostProcess, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{running.process.pid}/status").read_text())
    assert caught is not None
    return bool(int(caught[1], 16) >> (number - 1) & 1)


@with_root
def test_one_ctrl_c_answers_and_a_second_ends_the_program(network: Network) -> None:
    router = router_of(network)
    running = [
        start(router, "measure", "-i", "left", "-i", "right", "--max-delay", delay, "--format", "json", "icmp")
        for delay in ("1s", "10min")
    ]
    with network.sender.start("ping", "-i", "0.02", network.receiver.address):
        wait_for_captures(router, 4)
        time.sleep(2.5)
        for command in running:
            command.process.send_signal(signal.SIGINT)
        # The other one waits ten minutes for packets on their way; from the first Ctrl-C on, signals end it.
        eventually(lambda: not is_caught(running[1], signal.SIGTERM))
        running[1].process.send_signal(signal.SIGINT)
        code, out, err = outcome(running[1])
        assert (code, out) == (130, "")
        assert "Traceback" not in err
        code, out, err = outcome(running[0])
    assert code == 0, err
    answer = json.loads(out)
    assert answer["aggregate"]["sent"] == answer["aggregate"]["received"] > 15
    assert answer["aggregate"]["end_ns"] - answer["aggregate"]["start_ns"] > 1_000_000_000


@with_root
def test_the_way_back_is_measured_with_reverse(network: Network) -> None:
    router = router_of(network)
    with network.sender.start("ping", "-i", "0.02", network.receiver.address):
        options = ("--for", "1s", "--max-delay", "200ms", "--sketch", "exact", "--format", "json", "icmp")
        code, out, err = outcome(start(router, "measure", "-i", "left", "-i", "right", "--reverse", *options))
    assert code == 0, err
    (flow,) = json.loads(out)["flows"]
    assert (flow["src_ip"], flow["dest_ip"]) == (network.receiver.address, network.sender.address)
    assert flow["lost"] == 0
    assert 5 <= flow["packets"] <= 55
    assert 0 < flow["mean_ns"] < 200_000_000


@with_root
def test_other_directions_measure_what_an_interface_sends(network: Network) -> None:
    """Both of the router's taps of the same interface: what leaves at the right, seen twice."""
    router = router_of(network)
    with network.sender.start("ping", "-i", "0.02", network.receiver.address):
        options = ("--directions", "out,out", "--for", "1s", "--max-delay", "100ms", "--format", "json", "icmp")
        code, out, err = outcome(start(router, "measure", "-i", "right", "-i", "right", *options))
    assert code == 0, err
    answer = json.loads(out)
    assert answer["aggregate"]["sent"] == answer["aggregate"]["received"] > 15
    assert answer["aggregate"]["mean_ns"] == 0  # the kernel stamps a sent packet once
    assert [flow["src_ip"] for flow in answer["flows"]] == [network.sender.address]


@with_root
def test_samples_are_written_as_they_complete(network: Network) -> None:
    running = start(network.sender, "rtt", "-i", "eth0", "--samples", "--format", "csv", "--for", "20s", "icmp")
    wait_for_captures(network.sender, 1)
    network.sender.run("ping", "-c", "3", "-i", "0.05", network.receiver.address)
    assert running.process.stdout is not None
    lines = [running.process.stdout.readline() for _ in range(4)]  # would wait for ever if they were held back
    assert lines[0].startswith("timestamp,src_ip")
    assert {line.split(",")[1] for line in lines[1:]} == {network.receiver.address}
    running.process.send_signal(signal.SIGINT)
    code, out, err = outcome(running)
    assert (code, out) == (0, "")
    assert "3 samples of 1 flow in 6 packets" in err


@with_root
def test_a_kill_leaves_every_closed_epoch(network: Network, tmp_path: Path) -> None:
    target = tmp_path / "eth0.epochs"
    options = ("--direction", "out", "--interval", "500ms", "--memory", "20KB", "-w", str(target), "icmp")
    running = start(network.sender, "record", "-i", "eth0", *options)
    wait_for_captures(network.sender, 1)
    network.sender.run("ping", "-c", "20", "-i", "0.1", network.receiver.address)

    def written() -> list[Epoch]:
        with target.open("rb") as file, suppress(WireError):  # the last one may be half written
            return [epoch for epoch in read_epochs(file) if epoch.stream == "segment"]
        return []

    # Nothing passes any more, and the last epoch closes all the same.
    eventually(lambda: sum(epoch.recorded for epoch in written()) == 20)
    running.process.kill()
    running.process.wait(PATIENCE_SECONDS)
    epochs = written()
    assert sum(epoch.recorded for epoch in epochs) == 20
    assert len(epochs) >= 4
    assert {epoch.node for epoch in epochs} == {"eth0"}


@with_root
def test_flows_of_an_interface_end_after_so_many_packets(network: Network) -> None:
    running = start(network.sender, "flows", "-i", "eth0", "-c", "7", "--format", "json", "icmp")
    wait_for_captures(network.sender, 1)
    network.sender.run("ping", "-c", "6", "-i", "0.02", network.receiver.address)
    code, out, err = outcome(running)
    assert code == 0, err
    answer = json.loads(out)
    assert sum(flow["packets"] for flow in answer["flows"]) == answer["packets"] == 7
    assert answer["ignored"] == {"dropped by the kernel": 0}
