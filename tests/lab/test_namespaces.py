"""The lab's networks work, shape traffic, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from live_hosts import transfer_seconds
from machine import live_marks
from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.lab.namespaces import (
    NAMESPACES,
    Bottleneck,
    Host,
    HostProcess,
    Network,
    remove_leftovers,
    remove_namespaces,
    run_command,
    shape_by_port,
    two_hosts,
)
from waiting import PATIENCE_SECONDS, eventually

pytestmark = live_marks("NETWORK NAMESPACES ARE NOT TESTED: they need root")


def own_namespaces() -> list[str]:
    return [path.name for path in NAMESPACES.glob(f"sojourn-{os.getpid()}-*")]


def test_two_hosts_reach_each_other_over_both_ip_versions() -> None:
    with two_hosts() as network:
        for address in (network.receiver.address, network.receiver.address6):
            assert "2 received" in network.sender.run("ping", "-c", "2", "-i", "0.01", address)
    assert own_namespaces() == []


def test_a_router_forwards_and_its_bottleneck_limits_the_rate() -> None:
    with two_hosts(bottleneck=Bottleneck(5_000_000), router=True) as network:
        assert "ttl=63" in network.sender.run("ping", "-c", "1", network.receiver.address)
        assert "ttl=63" in network.sender.run("ping", "-c", "1", network.receiver.address6)
        assert transfer_seconds(network.sender, network.receiver, 1_000_000) > 1.5  # 8 Mbit at 5 Mbit/s


def fail_with_a_process(network: Network, started: list[HostProcess]) -> NoReturn:
    started.append(network.sender.start("sleep", "100"))
    assert len(own_namespaces()) == 3
    raise RuntimeError


def fail_away_from(home: str) -> NoReturn:
    assert os.readlink("/proc/thread-self/ns/net") != home
    raise RuntimeError


def test_an_exception_removes_the_network_and_its_processes() -> None:
    started: list[HostProcess] = []
    with pytest.raises(RuntimeError), two_hosts(router=True) as network:
        fail_with_a_process(network, started)
    (running,) = started
    assert running.process.returncode == -signal.SIGTERM
    assert own_namespaces() == []


def test_what_a_killed_process_left_is_removed_with_what_runs_in_it() -> None:
    code = (
        "from sojourn.lab.namespaces import two_hosts\n"
        "import time\n"
        "with two_hosts() as network:\n"
        "    print(network.sender.start('sleep', '100').process.pid, flush=True)\n"
        "    time.sleep(100)\n"
    )
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    sleeper = int(maker.stdout.readline())
    left = sorted(path.name for path in NAMESPACES.glob(f"sojourn-{maker.pid}-*"))
    assert len(left) == 2
    assert not {*left} & {*remove_leftovers()}  # its maker still runs
    maker.kill()
    maker.wait(PATIENCE_SECONDS)
    maker.stdout.close()
    assert {*left} <= {*remove_leftovers()}
    state = Path(f"/proc/{sleeper}/stat")
    eventually(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_command_that_fails_or_hangs_says_so() -> None:
    with two_hosts() as network:
        with pytest.raises(SojournError, match=r"ip link show nothing0: failed with code 1: Device .* does not exist"):
            network.sender.run("ip", "link", "show", "nothing0")
        begun = time.monotonic()
        with pytest.raises(SojournError, match=r"sleep 60: did not end within 0.2 s"):
            network.sender.run("sleep", "60", timeout=0.2)
        assert time.monotonic() - begun < 50


def test_a_command_that_is_starting_when_ctrl_c_comes_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = subprocess.Popen

    def interrupted(*command: Any, **how: Any) -> subprocess.Popen[str]:
        started.append(start(*command, **how))
        signal.raise_signal(signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_command("sleep", "600")
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_entering_a_host_is_undone_even_by_an_exception() -> None:
    home = os.readlink("/proc/thread-self/ns/net")
    with two_hosts() as network:
        with pytest.raises(RuntimeError), network.sender.entered():
            fail_away_from(home)
        assert os.readlink("/proc/thread-self/ns/net") == home


def test_whoever_is_inside_when_a_host_is_removed_goes_on() -> None:
    """As where Ctrl-C comes while `lab up` is in a host: it removes what it made, and must not end itself."""
    with two_hosts() as network, network.sender.entered():
        remove_namespaces([network.sender.namespace])
        assert not (NAMESPACES / network.sender.namespace).exists()


def test_a_process_that_ignores_the_request_is_ended_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.lab.namespaces.STOP_SECONDS", 2.0)
    with two_hosts() as network:
        script = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
        deaf = network.sender.start("sh", "-c", script, stdout=subprocess.PIPE)
        assert deaf.process.stdout is not None
        assert deaf.process.stdout.readline() == "deaf\n"
        assert deaf.stop() == -signal.SIGKILL


def test_without_root_it_is_refused_in_one_line() -> None:
    os.seteuid(65534)
    try:
        with (
            pytest.raises(UsageError, match="lab: network namespaces need root; run it as root"),
            two_hosts(),
        ):
            pass
    finally:
        os.seteuid(0)


def test_a_bottleneck_that_no_packet_passes_is_refused() -> None:
    with pytest.raises(ParameterError, match="burst"):
        Bottleneck(1_000_000, burst_bytes=100)


def test_ranges_of_ports_have_token_buckets_of_their_own() -> None:
    """200 kB from a port of the slow range take two seconds; others pass freely, at least once in some attempts."""
    with two_hosts(router=True) as network:
        assert network.router is not None
        shape_by_port(network.router, "right", 64 * 300, [Bottleneck(800_000, burst_bytes=5000)])
        slow, *free = (
            transfer_seconds(network.sender, network.receiver, 200_000, src_port=port)
            for port in (64 * 300 + 63, *range(64 * 301, 64 * 301 + 5))
        )
    assert slow > 1.8
    assert min(free) < 1


def test_ranges_of_ports_begin_at_their_multiples() -> None:
    with pytest.raises(ParameterError, match="multiple of 64"):
        shape_by_port(Host("router", "none"), "right", 100, [Bottleneck(1_000_000)])
