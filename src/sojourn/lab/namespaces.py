"""A small real network inside this machine: hosts are network namespaces, cables are veth pairs.

::

    sender ── eth0    left ── router ── right    eth0 ── receiver
           10.97.1.2   10.97.1.1  10.97.2.1   10.97.2.2

`two_hosts` builds it (with or without the router), and removes it whatever happens. With a `Bottleneck`
packets towards the receiver pass a token bucket: at the router's `right`, or without a router at the
sender's `eth0`. A capture taps an interface *after* its queue, so the queueing shows as delay between
the two `eth0` only when there is a router.

Guarantee: interfaces, addresses and queues exist only inside namespaces made here, with names that carry
this process's number and start time; `remove_leftovers` removes those of processes that were killed.
Segmentation offload is off, so that both hosts see the same packets. Other networks are built of the same parts
(`new_host`, `cable`, `give_address`), with offload on if they like.
Needs root, and the commands ``ip``, ``tc`` and ``ethtool``.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.core.executors.interrupts import handlers_held

PREFIX = "sojourn"
NAMESPACES = Path("/run/netns")
COMMAND_SECONDS = 60.0
STOP_SECONDS = 5.0
PORTS_EACH = 64
LEAST_BURST_BYTES = 400
_CLONE_NEWNET = 0x40000000
_SEQUENCE = itertools.count()


@dataclass(frozen=True)
class Bottleneck:
    """A token bucket: bits per second, bytes that may pass at once, bytes that may wait (others are lost).

    A packet longer than the burst never passes: below 1600 bytes, interfaces before it need a smaller MTU.
    """

    rate: int
    burst_bytes: int = 5000
    queue_bytes: int = 60000

    def __post_init__(self) -> None:
        if self.rate < 8000 or self.burst_bytes < LEAST_BURST_BYTES or self.queue_bytes < self.burst_bytes:
            raise ParameterError(
                f"rate {self.rate}, burst {self.burst_bytes}, queue {self.queue_bytes}",
                where="bottleneck",
                action="use 8000 bit/s or more, a burst above one packet and a queue above the burst",
            )


class HostProcess:
    """A command that runs on a host; leaving its context stops it."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process = process
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """Ask the process to end, insist after some seconds; its exit code."""
        for attempt in (sign, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(attempt)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(STOP_SECONDS)
        for stream in (self.process.stdout, self.process.stderr, self.process.stdin):
            if stream is not None:
                stream.close()
        return self.process.wait(STOP_SECONDS)


@dataclass
class Host:
    """One namespace: commands run in it, sockets are opened in it."""

    name: str
    namespace: str
    address: str = ""
    address6: str = ""
    processes: list[HostProcess] = field(default_factory=list)

    def within(self, *command: str) -> list[str]:
        """The command line that runs a command here."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def run(self, *command: str, timeout: float = COMMAND_SECONDS) -> str:
        """Run a command to its end; what it printed. A failure or a timeout raises."""
        where = f"{self.name}: {' '.join(command)}"
        return run_command(*self.within(*command), where=where, timeout=timeout)

    def start(
        self,
        *command: str,
        stdout: int | IO[str] = subprocess.DEVNULL,
        stderr: int | IO[str] = subprocess.DEVNULL,
    ) -> HostProcess:
        """Start a command that goes on; it ends with its context, or with the network."""
        with handlers_held(signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(
                self.within(*command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
            )
            running = HostProcess(process, command[0])
            self.processes.append(running)
        return running

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this thread a process of the host: sockets that it opens belong there, for good."""
        with open("/proc/thread-self/ns/net") as home, open(NAMESPACES / self.namespace) as there:
            try:  # an interruption right after entering has to lead out again
                _set_namespace(there.fileno())
                yield
            finally:
                with handlers_held(signal.SIGINT, signal.SIGTERM):
                    _set_namespace(home.fileno())


@dataclass(frozen=True)
class Network:
    """Two hosts and, maybe, the router between them."""

    sender: Host
    receiver: Host
    router: Host | None


@contextmanager
def two_hosts(*, bottleneck: Bottleneck | None = None, router: bool = False) -> Iterator[Network]:
    """Build the network of the module's picture; remove it and stop its processes at the end."""
    check_can_build()
    remove_leftovers()
    label = new_label()
    with ExitStack() as stack:
        sender = stack.enter_context(new_host("sender", label))
        receiver = stack.enter_context(new_host("receiver", label))
        middle = stack.enter_context(new_host("router", label)) if router else None
        if middle is None:
            _connect(sender, "eth0", receiver, "eth0", subnet=1, ends=(2, 3))
        else:
            _connect(sender, "eth0", middle, "left", subnet=1, ends=(2, 1))
            _connect(receiver, "eth0", middle, "right", subnet=2, ends=(2, 1))
            route_through(middle, sender, receiver)
        if bottleneck is not None:
            port = "right" if middle else "eth0"
            shape(middle or sender, port, bottleneck)
        wait_until_up([host for host in (sender, receiver, middle) if host])
        yield Network(sender, receiver, middle)


def remove_leftovers() -> list[str]:
    """Remove namespaces whose maker no longer runs, with the processes in them; their names."""
    check_can_build()
    left = []
    for path in sorted(NAMESPACES.glob(f"{PREFIX}-*-*-*-*")):
        _, pid, started, *_ = path.name.split("-")
        if pid.isdigit() and started.isdigit() and start_time(int(pid)) != int(started):
            left.append(path.name)
    remove_namespaces(left)
    return left


def check_can_build() -> None:
    if os.geteuid() != 0:
        raise UsageError("network namespaces need root", where="lab", action="run it as root")
    missing = [command for command in ("ip", "tc", "ethtool") if shutil.which(command) is None]
    if missing:
        raise UsageError(f"missing commands: {', '.join(missing)}", where="lab", action="install iproute2 and ethtool")


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def is_alive(pid: int) -> bool:
    """Whether a process is there, other than as a name that its parent has not taken note of."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def own_prefix() -> str:
    return f"{PREFIX}-{os.getpid()}-{start_time(os.getpid())}"


def new_label() -> str:
    """What the namespaces of one network have in common; no other network has it."""
    return f"{own_prefix()}-{next(_SEQUENCE)}"


@contextmanager
def new_host(name: str, label: str) -> Iterator[Host]:
    """A namespace of a network's label, without cables; its processes end with it."""
    host = Host(name, f"{label}-{name}")
    try:
        run_command("ip", "netns", "add", host.namespace)
        with host.entered():  # addresses are usable at once, without looking for duplicates
            for scope in ("all", "default"):
                Path("/proc/sys/net/ipv6/conf", scope, "accept_dad").write_text("0")
        host.run("ip", "link", "set", "lo", "up")
        yield host
    finally:
        for process in host.processes:
            process.stop()
        remove_namespaces([host.namespace])


def remove_namespaces(names: Collection[str]) -> None:
    """End what still runs in namespaces, by process number, and what that starts meanwhile; then remove them.

    One command removes all of them: on a busy machine each command takes a tenth of a second.
    """
    deadline = time.monotonic() + STOP_SECONDS
    while (pids := processes_in(names)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    there = [name for name in names if (NAMESPACES / name).exists()]
    if there:
        try:
            run_command("ip", "-force", "-batch", "-", given="".join(f"netns delete {name}\n" for name in there))
        except SojournError:
            if any((NAMESPACES / name).exists() for name in there):  # not that someone else removed it meanwhile
                raise


def processes_in(namespaces: Collection[str]) -> list[int]:
    """The processes in any of the namespaces; those that have ended and are only waited for are in none.

    This one is not among them: whoever is interrupted on the way into a host removes it, and must not end itself.
    """
    wanted = set()
    for name in namespaces:
        with suppress(OSError):
            wanted.add(_identity(NAMESPACES / name))
    found = []
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        with suppress(OSError):
            if int(process.name) != os.getpid() and _identity(process / "ns" / "net") in wanted:
                found.append(int(process.name))
    return found


def _identity(namespace: Path) -> tuple[int, int]:
    status = namespace.stat()
    return status.st_dev, status.st_ino


def _connect(one: Host, port: str, other: Host, other_port: str, *, subnet: int, ends: tuple[int, int]) -> None:
    """A cable between two hosts, with addresses; the last bytes of these are `ends`."""
    cable((one, port), (other, other_port), offload=False)
    give_address(one, port, subnet=subnet, last=ends[0])
    give_address(other, other_port, subnet=subnet, last=ends[1])


def cable(one: tuple[Host, str], other: tuple[Host, str], *, offload: bool) -> None:
    """A cable between ports of two hosts, which are up; with `offload` they split and join packets as network cards do.

    The kernel joins a virtual cable's packets (GRO) only if it is asked to.
    """
    peer = ("peer", "name", other[1], "netns", other[0].namespace)
    run_command("ip", "link", "add", one[1], "netns", one[0].namespace, "type", "veth", *peer)
    for host, port in (one, other):
        settings = ("gro", "on") if offload else ("tx", "off", "tso", "off", "gso", "off", "gro", "off")
        host.run("ethtool", "-K", port, *settings)
        host.run("ip", "link", "set", port, "up")


def give_address(host: Host, port: str, *, subnet: int, last: int) -> None:
    """The host's addresses from now on, IPv4 and IPv6."""
    host.address, host.address6 = f"10.97.{subnet}.{last}", f"fd97:{subnet}::{last}"
    host.run("ip", "address", "add", f"{host.address}/24", "dev", port)
    host.run("ip", "address", "add", f"{host.address6}/64", "dev", port, "nodad")


def route_through(router: Host, sender: Host, receiver: Host) -> None:
    """The router forwards; the others' default routes lead to it, which has the first address of subnets 1 and 2."""
    with router.entered():
        for switch in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            Path("/proc/sys/net", switch).write_text("1")
    for host, subnet in ((sender, 1), (receiver, 2)):
        host.run("ip", "route", "add", "default", "via", f"10.97.{subnet}.1")
        host.run("ip", "-6", "route", "add", "default", "via", f"fd97:{subnet}::1")


def shape_by_port(host: Host, interface: str, first_port: int, bottlenecks: Sequence[Bottleneck]) -> None:
    """A token bucket for each range of `PORTS_EACH` TCP source ports, from `first_port` on; other packets pass."""
    if first_port % PORTS_EACH or first_port + PORTS_EACH * len(bottlenecks) > 1 << 16:
        raise ParameterError(f"ports from {first_port}", where="lab", action=f"begin at a multiple of {PORTS_EACH}")
    host.run("tc", "qdisc", "add", "dev", interface, "root", "handle", "1:", "htb")
    for i, bottleneck in enumerate(bottlenecks):
        parent, ports = f"1:{i + 1:x}", f"{first_port + PORTS_EACH * i}"
        host.run(
            *("tc", "class", "add", "dev", interface, "parent", "1:", "classid", parent),
            *("htb", "rate", "1gbit", "quantum", "1514"),
        )
        host.run("tc", "qdisc", "add", "dev", interface, "parent", parent, *token_bucket(bottleneck))
        match = ("match", "ip", "protocol", "6", "0xff", "match", "ip", "sport", ports, hex(0x10000 - PORTS_EACH))
        host.run(
            *("tc", "filter", "add", "dev", interface, "parent", "1:", "protocol", "ip", "prio", "1"),
            *("u32", *match, "flowid", parent),
        )


def shape(host: Host, port: str, bottleneck: Bottleneck) -> None:
    """What the host sends by a port passes a token bucket."""
    host.run("tc", "qdisc", "replace", "dev", port, "root", *token_bucket(bottleneck))


def token_bucket(bottleneck: Bottleneck) -> tuple[str, ...]:
    rate, burst, limit = (str(n) for n in (bottleneck.rate, bottleneck.burst_bytes, bottleneck.queue_bytes))
    return ("tbf", "rate", f"{rate}bit", "burst", burst, "limit", limit)


def wait_until_up(hosts: Sequence[Host]) -> None:
    """Wait for the kernel to notice the cables, which takes it up to a second; IPv6 fails before."""
    deadline = time.monotonic() + COMMAND_SECONDS
    for host in hosts:
        while '"operstate":"DOWN"' in host.run("ip", "-json", "link", "show"):
            if time.monotonic() > deadline:
                raise SojournError("its interfaces stay down", where=host.namespace)
            time.sleep(0.02)


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise SojournError(f"cannot enter a namespace: {os.strerror(ctypes.get_errno())}", where="lab")


def run_command(*command: str, given: str = "", where: str = "", timeout: float = COMMAND_SECONDS) -> str:
    """Run a command to its end, `given` on its stdin; what it printed. A failure or a timeout raises."""
    place = where or " ".join(command)
    try:
        result = _finished(command, given, timeout)
    except subprocess.TimeoutExpired:
        raise SojournError(f"did not end within {timeout:g} s", where=place) from None
    if result.returncode != 0:
        message = (result.stderr.strip() or result.stdout.strip()).splitlines()[-1:] or ["no message"]
        raise SojournError(f"failed with code {result.returncode}: {message[0]}", where=place)
    return result.stdout


def _finished(command: Sequence[str], given: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, but no command goes on by itself that was starting when a signal came."""
    started: list[subprocess.Popen[str]] = []
    pipe = subprocess.PIPE
    try:
        with handlers_held(signal.SIGINT, signal.SIGTERM):
            started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        said, complained = started[0].communicate(given, timeout)
    except BaseException:
        for process in started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
        raise
    return subprocess.CompletedProcess(command, started[0].returncode, said, complained)
