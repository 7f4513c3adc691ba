"""Fifty real MQTT connections through token buckets (IoTm, §IV-B): measured live, answered by the query unit.

Clients in one network namespace publish to a mosquitto broker in another, flow i at i messages of 100 bytes per second,
as in the paper. At the router between them ten token buckets serve five flows each, at loads from one half up, so that
flows differ in their queueing. The agent runs beside the clients: it captures, measures round trips, and records them
with counts in short salted epochs. The truth is the mean of the same samples, kept exactly beside. Needs root.

Queueing varies by as much as its mean, and slowly, as no synthetic world here does: a second agent with 100 buckets, 3
for each flow (900 bytes), shows what more memory buys.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.core.errors import SojournError, UsageError
from sojourn.lab.disk_load import Tally
from sojourn.lab.fleet import Fleet, agent, query_unit
from sojourn.lab.namespaces import PORTS_EACH, Bottleneck, Host, Network, shape_by_port, two_hosts
from sojourn.papers.claims import Claim
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.sources.instances import InstancePatterns, SelectedInstances
from sojourn.sources.traffic import FlowRtt

__all__ = ["FlowRecording", "real_flows", "record_flows"]

EXPERIMENT = "real round trips"
FLOWS, CLASSES = 50, 10
FIRST_PORT = 320 * PORTS_EACH
BROKER_PORT = 1883
# On the wire a message takes 175 bytes, and its answer's acknowledgement 66, most of which ride on the next message.
MESSAGE_BYTES = 202
LOADS = np.linspace(0.72, 0.92, CLASSES)
# Packets of a few messages at most, so that a bucket's burst can be short and queues show.
MTU, BURST_BYTES = 400, 450
NODE, WIDE = "clients", "wide"
WITHIN = 0.07
POLL_SECONDS = 0.5
MS = 1e6


@dataclass(frozen=True, eq=False)
class FlowRecording:
    """Each flow's exact mean round trip and samples, and what was answered; NaN where there was no answer.

    ``recorded_share`` is the agent's samples over those counted beside it.
    """

    names: list[str]
    truth_ns: FloatArray
    samples: FloatArray
    literal_ns: FloatArray
    joint_ns: FloatArray
    covered: BoolArray
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


def record_flows(seconds: float, *, epoch: str) -> FlowRecording:
    """Run the network, the broker, the clients, the agent and the query unit for a while."""
    if shutil.which("mosquitto") is None:
        raise UsageError("the command mosquitto is missing", where=EXPERIMENT, action="install mosquitto")
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
            "epoch": epoch,
            "instances": [pattern],
            "bits": 48,
            "count_bits": 24,
        }
        with (
            agent(fleet, NODE, {"rtt": {**stream, "buckets": 20, "per_instance": 5}}),
            agent(fleet, WIDE, {"rtt": {**stream, "buckets": 100, "per_instance": 3}}),
            _counted_beside(network.sender, pattern) as tally,
        ):
            by_port = _run_clients(network, seconds)
            time.sleep(2.5)  # the agent polls every second
        return _answered(fleet, tally, by_port)


def _start_broker(network: Network, folder: Path) -> None:
    if network.router is None:
        raise SojournError("there is no router", where=EXPERIMENT)
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
    said = network.sender.run(*command, str(seconds), "1", *flows, timeout=seconds + 60)
    return {int(row["port"]): float(row["mean_ns"]) for row in json.loads(said)}


def _answered(fleet: Fleet, tally: Tally, by_port: dict[int, float]) -> FlowRecording:
    sums, counts = tally.sums(), tally.counts()
    names = sorted(counts, key=lambda name: counts[name])
    truth = np.array([sums[name] / counts[name] for name in names])
    literal, _, _ = _asked(fleet, NODE, "literal", names)
    joint, low, high = _asked(fleet, NODE, "joint", names)
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
    """A minute of messages, or the paper's ten."""
    seconds, epoch = (40.0, "2500ms") if scale is Scale.SMALL else (600.0, "40s")
    try:
        recording = record_flows(seconds, epoch=epoch)
    except (SojournError, OSError) as error:
        return Outcome([Claim(experiment=EXPERIMENT, quantity=f"left out: {error}"[:200], unit="")])
    return Outcome(_claims(recording, epoch), [_figure(recording)])


def _claims(recording: FlowRecording, epoch: str) -> list[Claim]:
    literal, grand = (recording.errors(answered) for answered in (recording.literal_ns, recording.grand_mean_ns))
    ours = {
        "": (recording.errors(recording.joint_ns), recording.covered),
        "; joint: 100 buckets, 3 each": (recording.errors(recording.wide_ns), recording.wide_covered),
    }
    claims: list[Claim] = []
    for how, (joint, covered) in ours.items():
        claims += [
            Claim(
                experiment=EXPERIMENT,
                quantity=f"flows within 7 %, epochs of {epoch}{how}",
                unit="%",
                paper=100.0,
                literal=100 * float((literal <= WITHIN).mean()),
                joint=100 * float((joint <= WITHIN).mean()),
                baseline=100 * float((grand <= WITHIN).mean()),
                reproduced=bool((literal <= WITHIN).all()),
            ),
            Claim(
                experiment=EXPERIMENT,
                quantity=f"median error{how}",
                unit="%",
                literal=100 * float(np.median(literal)),
                joint=100 * float(np.median(joint)),
                baseline=100 * float(np.median(grand)),
            ),
            Claim(
                experiment=EXPERIMENT,
                quantity=f"95 % intervals that cover{how}",
                unit="%",
                joint=100 * float(covered.mean()),
            ),
        ]
    facts = (
        ("samples that the agent recorded, of those counted beside", "%", 100 * recording.recorded_share),
        ("least mean round trip of a flow", "ms", float(recording.truth_ns.min()) / MS),
        ("largest mean round trip of a flow", "ms", float(recording.truth_ns.max()) / MS),
    )
    return claims + [Claim(experiment=EXPERIMENT, quantity=what, unit=unit, joint=value) for what, unit, value in facts]


def _figure(recording: FlowRecording) -> Figure:
    order = np.argsort(recording.truth_ns)
    x = list(range(1, len(order) + 1))
    shown = (
        ("measured exactly", recording.truth_ns, "paper"),
        ("literal estimator", recording.literal_ns, "literal"),
        ("joint, 20 buckets", recording.joint_ns, "joint"),
        ("joint, 100 buckets", recording.wide_ns, "joint"),
        ("mean of all samples", np.full(len(order), recording.grand_mean_ns), "baseline"),
    )
    lines = [Line(name, x, (values[order] / MS).tolist(), kind) for name, values, kind in shown]  # type: ignore[arg-type]
    return Figure(
        name="real-round-trips",
        x_label="flow, by its round trip",
        y_label="mean round trip, ms",
        panels={f"{len(order)} flows": lines},
        log_y=True,
    )
