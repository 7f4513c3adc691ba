"""IoTm on a real machine: ten processes that write to its disk (§IV-A), fifty MQTT connections (§IV-B).

Recorded live by agents, answered by the query unit over HTTP, compared with the same source's exact count beside them.
 **Disk.** Two agents see the same operations: one as published (random j, the same hash functions in every epoch),
one in turns with a salt of each epoch's own. Operations are the kernel's block tracepoint's where that can be had
(root), else system calls.
 **Round trips.** Clients in one network namespace publish to a mosquitto broker in another, flow i at i messages of
100 bytes per second, as in the paper. At the router between them ten token buckets serve five flows each, at loads
from one half up, so that flows differ in their queueing. The agent runs beside the clients: it captures, measures
round trips, and records them with counts in salted epochs. Queueing varies by more than its mean, and slowly, as no
synthetic world here does: of three agents one records the paper's 20 buckets in sixteen epochs, one in as many as the
planner chooses for such queues, each under a salt of its own, and one in 100 buckets, 3 for each flow (900 bytes).
Needs root.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.core.errors import SojournError, UsageError
from sojourn.lab.disk_load import Tally, mounted_tracefs, writers
from sojourn.lab.fleet import Fleet, agent, query_unit
from sojourn.lab.namespaces import PORTS_EACH, Bottleneck, Host, Network, shape_by_port, two_hosts
from sojourn.node.agent.configuration import DEFAULT_SALTS
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.sketches.sizing.iotm import EpochPlan
from sojourn.sketches.sizing.means import Variation, plan_epochs
from sojourn.sources.disk_io import Method
from sojourn.sources.source import InstancePatterns, SelectedInstances
from sojourn.sources.traffic import FlowRtt

DISK = "real disk"
PROCESSES = 10
BUSIEST_PER_SECOND = 150.0
PUBLISHED, TURNS = "published", "turns"
WITHIN = 0.05
ROUND_TRIPS = "real round trips"
FLOWS, CLASSES = 50, 10
FIRST_PORT = 320 * PORTS_EACH
BROKER_PORT = 1883
# On the wire a message takes 175 bytes, and its answer's acknowledgement 66, most of which ride on the next message.
MESSAGE_BYTES = 202
LOADS = np.linspace(0.72, 0.92, CLASSES)
# Packets of a few messages at most, so that a bucket's burst can be short and queues show.
MTU, BURST_BYTES = 400, 450
NODE, PLANNED, WIDE = "clients", "planned", "wide"
BUCKETS, PER_FLOW = 20, 5
# Two round trips for each message; queues at these loads vary by 1.6 times their mean, alike for half a second.
ROUND_TRIPS_EACH, QUEUES = 2, Variation(values=1.6, alike_ns=500_000_000)
FLOW_WITHIN = 0.07
POLL_SECONDS = 0.5
MS = 1e6


@dataclass(frozen=True, eq=False)
class DiskRecording:
    """Each process's true number of operations, and what was answered, by (node, method)."""

    method: Method
    names: list[str]
    truth: FloatArray
    answers: Mapping[tuple[str, str], FloatArray]
    covered: FloatArray

    def errors(self, node: str, method: str) -> FloatArray:
        found: FloatArray = np.abs(self.answers[node, method] - self.truth) / self.truth
        return found

    @property
    def equal_share_errors(self) -> FloatArray:
        found: FloatArray = np.abs(self.truth.mean() - self.truth) / self.truth
        return found


def record_disk(seconds: float, *, epoch: str) -> DiskRecording:
    """Run ten writers, two agents and a query unit for a while."""
    rates = [BUSIEST_PER_SECOND / (1 + i) for i in range(PROCESSES)]
    with ExitStack() as stack:
        method: Method = "tracepoint" if stack.enter_context(mounted_tracefs()) else "system_calls"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sojourn-fleet-")))
        load = stack.enter_context(writers(rates, seconds))
        fleet = stack.enter_context(query_unit(folder))
        stream = {
            "metric": "disk_io",
            "method": method,
            "epoch": epoch,
            "instances": [load.pattern],
            "buckets": 20,
            "per_instance": 5,
            "bits": 16,
            "count_bits": 0,
        }
        with (
            agent(fleet, PUBLISHED, {"disk": {**stream, "spreading": "random", "salted": False}}),
            agent(fleet, TURNS, {"disk": {**stream, "spreading": "round-robin"}}),
        ):
            counted = load.write(method)
        if len(counted) < PROCESSES:
            raise SojournError(f"{len(counted)} of {PROCESSES} processes reached a disk", where=DISK)
        return _answered_disk(fleet, method, counted)


def _answered_disk(fleet: Fleet, method: Method, counted: Mapping[str, int]) -> DiskRecording:
    names = sorted(counted, key=lambda name: -counted[name])
    truth = np.array([counted[name] for name in names], np.float64)
    answers, covered = {}, np.empty(0)
    for node in (PUBLISHED, TURNS):
        for how in ("literal", "joint"):
            found = {
                str(answer["instance"]): answer
                for answer in fleet.ask(metric="disk_io", node=node, method=how, top=1000)
            }
            answers[node, how] = np.array([float(found[name]["value"]) for name in names])  # type: ignore[arg-type]
            if (node, how) == (TURNS, "joint"):
                low, high = (np.array([float(found[n][end]) for n in names]) for end in ("low", "high"))  # type: ignore[arg-type]
                covered = ((low <= truth) & (truth <= high)).astype(np.float64)
    return DiskRecording(method, names, truth, answers, covered)


def real_disk(scale: Scale) -> Outcome:
    """A minute of disk IO, or the paper's ten."""
    seconds, epoch = (50.0, "10s") if scale is Scale.SMALL else (600.0, "60s")
    try:
        recording = record_disk(seconds, epoch=epoch)
    except (SojournError, OSError) as error:
        return Outcome([Claim(DISK, "", f"left out: {error}"[:200])])
    return Outcome(_disk_claims(recording, epoch), [_disk_figure(recording)])


def _percent(errors: Sequence[FloatArray], statistic: Callable[[FloatArray], object]) -> list[float]:
    return [100 * float(statistic(one)) for one in errors]  # type: ignore[arg-type]


def _disk_claims(recording: DiskRecording, epoch: str) -> list[Claim]:
    literal, equal = recording.errors(PUBLISHED, "literal"), recording.equal_share_errors
    ours = {"turns": recording.errors(TURNS, "joint"), "random j, one salt": recording.errors(PUBLISHED, "joint")}
    how = "block tracepoint" if recording.method == "tracepoint" else "system calls"
    claim, all_within = partial(Claim, DISK, "%"), bool((literal <= WITHIN).all())
    claims = []
    for shown, joint in ours.items():
        shares = _percent((literal, joint, equal), lambda errors: (errors <= WITHIN).mean())
        what = f"processes within 5 %, {how}, epochs of {epoch}; joint: {shown}"
        claims.append(claim(what, *shares, paper=100.0, reproduced=all_within))
    claims += [
        claim(f"{name} error; joint: {shown}", *_percent((literal, joint, equal), statistic))
        for name, statistic in (("median", np.median), ("largest", np.max))
        for shown, joint in ours.items()
    ]
    covered = 100 * float(recording.covered.mean())
    return [*claims, claim("95 % intervals that cover, of ten; joint: turns", joint=covered)]


def _disk_figure(recording: DiskRecording) -> Figure:
    answers = recording.answers
    shown: tuple[tuple[str, FloatArray, Kind], ...] = (
        ("counted", recording.truth, "paper"),
        ("as published", answers[PUBLISHED, "literal"], "literal"),
        ("joint, random j", answers[PUBLISHED, "joint"], "joint"),
        ("joint, turns", answers[TURNS, "joint"], "joint"),
        ("equal share", np.full(PROCESSES, recording.truth.mean()), "baseline"),
    )
    lines = [Line(name, range(1, PROCESSES + 1), values.tolist(), kind) for name, values, kind in shown]
    return Figure("real-disk", "process", "operations", {"ten processes": lines})


@dataclass(frozen=True, eq=False)
class FlowRecording:
    """Each flow's exact mean round trip and samples, and what was answered; NaN where there was no answer.

    ``joint_ns`` is from sixteen epochs, ``planned_ns`` from those that were planned. ``recorded_share`` is the agent's
    samples over those counted beside it.
    """

    names: list[str]
    truth_ns: FloatArray
    samples: FloatArray
    literal_ns: FloatArray
    joint_ns: FloatArray
    covered: BoolArray
    planned_ns: FloatArray
    planned_covered: BoolArray
    wide_ns: FloatArray
    wide_covered: BoolArray
    recorded_share: float
    client_ns: FloatArray

    @property
    def grand_mean_ns(self) -> float:
        return float((self.truth_ns * self.samples).sum() / self.samples.sum())

    def errors(self, answered_ns: FloatArray | float) -> FloatArray:
        """Relative errors; no answer counts as wholly wrong."""
        return np.nan_to_num(np.abs(answered_ns - self.truth_ns) / self.truth_ns, nan=1.0)


def _ports_and_rates() -> list[tuple[int, int]]:
    """Flow i sends i messages per second and belongs to class i mod 10."""
    return [(FIRST_PORT + PORTS_EACH * (i % CLASSES) + i // CLASSES, i) for i in range(1, FLOWS + 1)]


def _bottlenecks() -> list[Bottleneck]:
    per_class = [sum(i for i in range(1, FLOWS + 1) if i % CLASSES == c) for c in range(CLASSES)]
    return [
        Bottleneck(rate=int(8 * MESSAGE_BYTES * messages / load), burst_bytes=BURST_BYTES, queue_bytes=200_000)
        for messages, load in zip(per_class, LOADS, strict=True)
    ]


@contextmanager
def _counted_beside(host: Host, pattern: str) -> Iterator[Tally]:
    """Measure the same round trips exactly, in a thread that belongs to the host, until the context ends."""
    tally, ready, stop = Tally(), threading.Event(), threading.Event()
    failures: list[Exception] = []

    def count() -> None:
        try:
            with host.entered(), SelectedInstances(_source(), InstancePatterns([pattern])) as source:
                ready.set()
                while not stop.wait(POLL_SECONDS):
                    tally.add(source.poll(time.time_ns()))
                tally.add(source.poll(time.time_ns()))
        except SojournError as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=count)
    thread.start()
    ready.wait()
    try:
        yield tally
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def _source() -> FlowRtt:
    return FlowRtt("eth0", filter=f"tcp port {BROKER_PORT}")


def planned_epochs(seconds: float) -> EpochPlan:
    """The epochs of 20 buckets, 5 for each flow, that the planner chooses for queues like these."""
    sizes = np.array([ROUND_TRIPS_EACH * seconds * rate for _, rate in _ports_and_rates()])
    return plan_epochs(
        sizes, int(seconds * 1e9), n=BUCKETS, m=PER_FLOW, variation=QUEUES, error=FLOW_WITHIN, confidence=0.95
    )


def record_flows(seconds: float) -> FlowRecording:
    """Run the network, the broker, the clients, the agents and the query unit for a while."""
    if shutil.which("mosquitto") is None:
        raise UsageError("the command mosquitto is missing", where=ROUND_TRIPS, action="install mosquitto")
    with ExitStack() as stack:
        network = stack.enter_context(two_hosts(router=True))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sojourn-fleet-")))
        _start_broker(network, folder)
        pattern = f"{network.receiver.address}:{BROKER_PORT} > *"
        fleet = stack.enter_context(query_unit(folder, host=network.sender))
        stream = {
            "metric": "rtt",
            "interface": "eth0",
            "filter": f"tcp port {BROKER_PORT}",
            "epoch": _milliseconds(seconds / DEFAULT_SALTS),
            "instances": [pattern],
            "bits": 48,
            "count_bits": 24,
        }
        plan, small = planned_epochs(seconds), {**stream, "buckets": BUCKETS, "per_instance": PER_FLOW}
        short = {"epoch": _milliseconds(plan.epoch_ns / 1e9), "salts": plan.epochs}
        with (
            agent(fleet, NODE, {"rtt": small}),
            agent(fleet, PLANNED, {"rtt": {**small, **short}}),
            agent(fleet, WIDE, {"rtt": {**stream, "buckets": 100, "per_instance": 3}}),
            _counted_beside(network.sender, pattern) as tally,
        ):
            by_port = _run_clients(network, seconds)
            time.sleep(2.5)  # the agent polls every second
        return _answered_flows(fleet, tally, by_port)


def _milliseconds(seconds: float) -> str:
    return f"{math.ceil(1000 * seconds)}ms"


def _start_broker(network: Network, folder: Path) -> None:
    if network.router is None:
        raise SojournError("there is no router", where=ROUND_TRIPS)
    network.sender.run("ip", "link", "set", "eth0", "mtu", str(MTU))
    shape_by_port(network.router, "right", FIRST_PORT, _bottlenecks())
    configuration = folder / "mosquitto.conf"
    configuration.write_text(f"listener {BROKER_PORT} 0.0.0.0\nallow_anonymous true\nuser root\nset_tcp_nodelay true\n")
    network.receiver.start("mosquitto", "-c", str(configuration))
    time.sleep(1.0)


def _run_clients(network: Network, seconds: float) -> dict[int, float]:
    """What each client saw itself, by its port: the mean time from a message to its answer."""
    flows = [f"{port}:{rate}" for port, rate in _ports_and_rates()]
    command = (sys.executable, "-m", "sojourn.lab.mqtt_clients", network.receiver.address, str(BROKER_PORT))
    printed = network.sender.run(*command, str(seconds), "1", *flows, timeout=seconds + 60)
    return {int(row["port"]): float(row["mean_ns"]) for row in json.loads(printed)}


def _answered_flows(fleet: Fleet, tally: Tally, by_port: dict[int, float]) -> FlowRecording:
    sums, counts = tally.sums(), tally.counts()
    names = sorted(counts, key=lambda name: counts[name])
    truth = np.array([sums[name] / counts[name] for name in names])
    literal, _, _ = _asked(fleet, NODE, "literal", names)
    joint, low, high = _asked(fleet, NODE, "joint", names)
    planned, planned_low, planned_high = _asked(fleet, PLANNED, "joint", names)
    wide, wide_low, wide_high = _asked(fleet, WIDE, "joint", names)
    (total,) = fleet.ask(metric="rtt", node=NODE, stat="mean")
    ports = [int(name.rpartition(":")[2].split()[0]) for name in names]
    return FlowRecording(
        names=names,
        truth_ns=truth,
        samples=np.array([float(counts[name]) for name in names]),
        literal_ns=literal,
        joint_ns=joint,
        covered=(low <= truth) & (truth <= high),
        planned_ns=planned,
        planned_covered=(planned_low <= truth) & (truth <= planned_high),
        wide_ns=wide,
        wide_covered=(wide_low <= truth) & (truth <= wide_high),
        recorded_share=float(str(total["samples"])) / sum(counts.values()),
        client_ns=np.array([by_port.get(port, np.nan) for port in ports]),
    )


def _asked(fleet: Fleet, node: str, method: str, names: list[str]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(values, lower and upper ends) of all flows; NaN where there is none.

    The joint decoder answers about all at once; the literal one is asked flow by flow, each of which takes it a while.
    """
    question = {"metric": "rtt", "node": node, "stat": "mean", "method": method}
    if method == "joint":
        found = fleet.ask(**question, top=1000)
    else:
        found = [answer for name in names for answer in fleet.ask(**question, instance=name)]
    answers = {str(answer["instance"]): answer for answer in found}

    def part(which: str) -> FloatArray:
        values = [answers.get(name, {}).get(which) for name in names]
        return np.array([np.nan if value is None else float(str(value)) for value in values])

    return part("value"), part("low"), part("high")


def real_flows(scale: Scale) -> Outcome:
    """Two minutes of messages, or the paper's ten."""
    seconds = 120.0 if scale is Scale.SMALL else 600.0
    try:
        recording = record_flows(seconds)
    except (SojournError, OSError) as error:
        return Outcome([Claim(ROUND_TRIPS, "", f"left out: {error}"[:200])])
    return Outcome(_flow_claims(recording, planned_epochs(seconds)), [_flow_figure(recording)])


def _flow_claims(recording: FlowRecording, plan: EpochPlan) -> list[Claim]:
    literal, grand = (recording.errors(answered) for answered in (recording.literal_ns, recording.grand_mean_ns))
    planned = f", {plan.epochs} planned epochs of {plan.epoch_ns / 1e6:.0f} ms"
    ours = {
        ", 16 epochs": (recording.errors(recording.joint_ns), recording.covered),
        planned: (recording.errors(recording.planned_ns), recording.planned_covered),
        ", 16 epochs; joint: 100 buckets, 3 each": (recording.errors(recording.wide_ns), recording.wide_covered),
    }
    claim, all_within = partial(Claim, ROUND_TRIPS, "%"), bool((literal <= FLOW_WITHIN).all())
    claims: list[Claim] = []
    for how, (joint, covered) in ours.items():
        shares = _percent((literal, joint, grand), lambda errors: (errors <= FLOW_WITHIN).mean())
        claims += [
            claim(f"flows within 7 %{how}", *shares, paper=100.0, reproduced=all_within),
            claim(f"median error{how}", *_percent((literal, joint, grand), np.median)),
            claim(f"95 % intervals that cover{how}", joint=100 * float(covered.mean())),
        ]
    recorded, least, most = recording.recorded_share, recording.truth_ns.min(), recording.truth_ns.max()
    return [
        *claims,
        claim("flows within 7 % that the planner expected", joint=100 * plan.share),
        claim("samples that the agent recorded, of those counted beside", joint=100 * recorded),
        Claim(ROUND_TRIPS, "ms", "least mean round trip of a flow", joint=float(least) / MS),
        Claim(ROUND_TRIPS, "ms", "largest mean round trip of a flow", joint=float(most) / MS),
    ]


def _flow_figure(recording: FlowRecording) -> Figure:
    order = np.argsort(recording.truth_ns)
    shown: tuple[tuple[str, FloatArray, Kind], ...] = (
        ("measured exactly", recording.truth_ns, "paper"),
        ("literal estimator", recording.literal_ns, "literal"),
        ("joint, 20 buckets, 16 epochs", recording.joint_ns, "joint"),
        ("joint, 20 buckets, planned epochs", recording.planned_ns, "joint"),
        ("joint, 100 buckets", recording.wide_ns, "joint"),
        ("mean of all samples", np.full(len(order), recording.grand_mean_ns), "baseline"),
    )
    lines = [Line(name, range(1, len(order) + 1), (y[order] / MS).tolist(), kind) for name, y, kind in shown]
    panels = {f"{len(order)} flows": lines}
    return Figure("real-round-trips", "flow, by its round trip", "mean round trip, ms", panels, log="y")
