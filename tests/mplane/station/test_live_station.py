"""The whole of MPlane on real routers: a bottleneck is named, its end is told, and a failing link is survived.

Six routers route by OSPF; b and d are upgraded. Traffic goes from h1 to h2, everything is reported in band to the query
unit at m, and asked there::

    h1 ── a ── b* ── c ── d* ── f ── h2        weights 1
          m    └──── e ───┘                    weights 2
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from machine import live_marks
from sojourn.client.query_unit import Client
from sojourn.core.errors import SojournError
from sojourn.lab.namespaces import Bottleneck, Host
from sojourn.lab.routed.network import RoutedLab, routed_lab
from sojourn.mplane.measurements import SegmentMeasurement
from sojourn.mplane.planning.topology import Topology, TopologyBuilder
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore

pytestmark = live_marks("THE MONITORING STATION IS NOT TESTED LIVE: it needs root for network namespaces")

Answer = TypeVar("Answer")
SOJOURN = (sys.executable, "-m", "sojourn.cli.main")
LINKS = (("a", "b", 1), ("b", "c", 1), ("c", "d", 1), ("d", "f", 1), ("b", "e", 2), ("e", "d", 2))
UPGRADED = "b,d"
INTERVAL_NS = 500_000_000
BEFORE = 16
HOLD = "10s"
# Far beyond what anything here takes: a machine may be busy.
WAIT_SECONDS = 300.0
PATH = ["a>b", "a>[b]>c", "b>c>d", "c>[d]>f", "d>f"]
DETOUR = ["a>b", "a>[b]>e", "b>e>d", "e>[d]>f", "d>f"]
# 36 packets of 456 bytes every 250 ms are half of what the bottleneck passes, which takes 100 ms for them. Packets wait
# for 50 ms in the mean and probes for half as long, where busy machines add microseconds; the queue holds seven bursts.
BURST_PACKETS, BURST_SECONDS = 36, 0.25
SLOW = Bottleneck(1_300_000, burst_bytes=1600, queue_bytes=120_000)
LEAST_NS = 5_000_000


def topology() -> Topology:
    builder = TopologyBuilder("station")
    for line, (source, target, weight) in enumerate(LINKS, 2):
        builder.add_link(source, target, str(weight), line=line)
    builder.add_missing_directions()
    return builder.finish()


@dataclass(frozen=True)
class Station:
    """The lab while everything in it measures."""

    lab: RoutedLab
    url: str
    token: str
    folder: Path

    @property
    def host(self) -> Host:
        return self.lab.host("m")

    @property
    def routing(self) -> tuple[str, ...]:
        where = f"frr:{self.lab.router('a').folder}"
        return ("--topology", where, "--names", str(self.folder / "names.csv"), "--upgraded", UPGRADED)

    def measured(self, from_ns: int = 0) -> list[SegmentMeasurement]:
        def question() -> list[SegmentMeasurement]:
            with self.host.entered(), Client(self.url, self.token) as client:
                return client.measurements(from_ns, 2**63 - 1)

        return answer_of(question)

    def usable(self, from_ns: int, segments: list[str]) -> dict[str, set[int]]:
        """By segment the intervals that begin from a time on and have a mean."""
        found: dict[str, set[int]] = {segment: set() for segment in segments}
        for one in self.measured(from_ns):
            if one.mean_ns is not None:
                found.get(str(one.segment), set()).add(one.start_ns)
        return found

    def wait_for(self, segments: list[str], first_ns: int, count: int) -> None:
        """Wait until each segment has so many usable intervals from a time on."""
        wait_until(
            lambda: all(len(some) >= count for some in self.usable(first_ns, segments).values()),
            lambda: f"{self.usable(first_ns, segments)}\n{self.logs()}",
        )

    def words(self, command: str) -> tuple[str, ...]:
        path = ("mplane", command, "--from", "a", "--to", "f", *self.routing, "--format", "json")
        return (*SOJOURN, *path, "--server", self.url, "--token", self.token)

    def ask(self, command: str, *options: str) -> dict:
        return json.loads(answer_of(lambda: self.host.run(*self.words(command), *options, timeout=WAIT_SECONDS)))

    @contextmanager
    def watched(self, *options: str) -> Iterator[Callable[[], list[tuple[str, str]]]]:
        """What `diagnose --watch` has said so far: verdicts and causes."""
        path = self.folder / "watch.jsonl"
        with open(path, "w") as out, self.host.start(*self.words("diagnose"), *options, "--watch", stdout=out):
            yield lambda: [
                (row["verdict"], row["cause"])
                for row in map(json.loads, path.read_text().rpartition("\n")[0].splitlines())
            ]

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-400:]}" for path in sorted(self.folder.glob("*.log")))


def answer_of(question: Callable[[], Answer]) -> Answer:
    """What the query unit answers; it is asked again where a busy machine kept it from answering in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return question()
        except SojournError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def wait_until(condition: Callable[[], bool], told: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.5)


@contextmanager
def traffic(lab: RoutedLab) -> Iterator[None]:
    """Bursts of packets from h1 to h2."""
    with lab.host("h1").entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    over = threading.Event()

    def send() -> None:
        due = time.monotonic()
        while not over.wait(max(due - time.monotonic(), 0.0)):
            due += BURST_SECONDS
            for _ in range(BURST_PACKETS):
                sender.sendto(os.urandom(400), (lab.host("h2").address, 9))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sender.close()


def start(lab: RoutedLab, node: str, name: str, folder: Path, *words: str) -> None:
    with open(folder / f"{name}-{node}.log", "w") as log:
        lab.node(node).start(*SOJOURN, *words, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    folder = tmp_path_factory.mktemp("station")
    with ExitStack() as stack:
        lab = stack.enter_context(routed_lab(topology(), hosts={"h1": "a", "h2": "f", "m": "a"}))
        store = open_store(folder / "data")
        tokens = {node: TokenStore(store).create(Role.NODE, name=node, node=node)[1] for node in "abd"}
        tokens["m"] = TokenStore(store).create(Role.ADMIN, name="m")[1]
        store.close()
        names = "".join(f"{lab.router(name).address},{name}\n" for name in "abcdef")
        (folder / "names.csv").write_text(f"router_id,name\n{names}")
        url = f"http://{lab.host('m').address}:8080"
        start(lab, "m", "serve", folder, "serve", "--data", str(folder / "data"), "--host", lab.host("m").address)
        lab.wait_converged()
        length = ("--interval", f"{INTERVAL_NS}ns")
        for node in "bdf":  # the others' links are in the m-sets of b and d as well, and are void here
            start(lab, node, "reflect", folder, "mplane", "reflect", "--allow", "10.96.0.0/16")
        for node in "bd":
            sides = [other for link in LINKS if node in link for other in link[:2] if other != node]
            facing = [word for other in sides for word in ("--interface", f"{lab.interface(node, other)}={other}")]
            how = (*length, "--max-delay", "1s")
            spool = ("-w", str(folder / f"spool-{node}"), "--server", url, "--token", tokens[node])
            start(lab, node, "router", folder, "mplane", "router", "--name", node, *facing, *how, *spool)
        for node in "abd":
            routing = ("--m-set", f"frr:{lab.router(node).folder}", "--names", str(folder / "names.csv"))
            how = (*length, "--rate", "150", "--hold", HOLD, "--poll", "500ms", "--upgraded", UPGRADED)
            where = ("--server", url, "--token", tokens[node])
            start(lab, node, "probe", folder, "mplane", "probe", "--from", node, *routing, *how, *where)
        stack.enter_context(traffic(lab))
        yield Station(lab, url, tokens["m"], folder)


def next_interval() -> int:
    return (time.time_ns() // INTERVAL_NS + 1) * INTERVAL_NS


@pytest.fixture(scope="module")
def before(station: Station) -> str:
    """A stretch of time in which nothing happened, with enough intervals of every segment."""
    station.wait_for(PATH, 0, 1)
    begun = next_interval()
    station.wait_for(PATH, begun, BEFORE)
    return f"{begun}..{next_interval() - INTERVAL_NS}"


def three_intervals_later(station: Station, *how: str) -> dict:
    """The diagnosis of the next three intervals; of the three after, where a busy machine lost one of them."""
    found: dict = {"verdict": "too thin"}
    deadline = time.monotonic() + WAIT_SECONDS
    while found["verdict"] == "too thin":
        assert time.monotonic() < deadline, found
        end = next_interval() + 3 * INTERVAL_NS
        station.wait_for(PATH, end, 1)  # all that was measured before has come by then
        found = station.ask("diagnose", *how, "--now", str(end))
    return found


@pytest.mark.parametrize(
    ("node", "neighbour", "segment"),
    [("b", "c", "a>[b]>c"), pytest.param("c", "d", "b>c>d", marks=pytest.mark.long)],
    ids=["inside an upgraded router", "in a router that is not"],
)
def test_a_bottleneck_is_named_within_three_intervals_and_cleared_after(
    station: Station, before: str, node: str, neighbour: str, segment: str
) -> None:
    how = ("--baseline", before, "--least", f"{LEAST_NS}ns")
    with station.watched(*how) as told:
        wait_until(lambda: bool(told()), station.logs)
        station.lab.set_bottleneck(node, neighbour, SLOW)
        found = three_intervals_later(station, *how)
        assert (found["verdict"], found["cause"]) == ("changed", segment), (found["summary"], found["segments"])
        assert found["segments"][0]["segment"] == segment
        assert found["segments"][0]["share"] > 0.5
        assert found["segments"][0]["change_ns"] > LEAST_NS
        wait_until(lambda: ("changed", segment) in told(), told)
        station.lab.set_bottleneck(node, neighbour, None)
        answer: dict = {}

        def is_cleared() -> bool:
            answer.update(station.ask("diagnose", *how))
            return (answer["verdict"], answer["cause"]) == ("cleared", segment)

        wait_until(lambda: ("cleared", segment) in told(), told)
        wait_until(is_cleared, lambda: (answer["summary"], answer["segments"]))
        assert told().index(("changed", segment)) < told().index(("cleared", segment))


@pytest.mark.long
def test_measurement_goes_on_while_a_link_fails(station: Station, before: str) -> None:
    complete = station.ask("path", "--between", before)
    assert [one["segment"] for one in complete["segments"]] == PATH
    assert complete["complete"], complete
    station.lab.link_down("b", "c")
    failed = time.time_ns()
    station.wait_for(DETOUR, failed, 3)
    detour = station.ask("path", "--between", f"{failed}..{time.time_ns()}")
    assert [one["segment"] for one in detour["segments"]] == DETOUR
    assert detour["complete"], detour

    def probed(segment: str) -> set[int]:
        """The intervals since, void ones among them."""
        return {one.start_ns for one in station.measured(failed) if str(one.segment) == segment}

    # Old and new are measured together, and only for the hold time.
    wait_until(lambda: len(probed("b>c>d") & probed("b>e>d")) >= 3, station.logs)
    wait_until(lambda: max(probed("b>c>d")) < max(probed("b>e>d")) - 10**9, station.logs)
