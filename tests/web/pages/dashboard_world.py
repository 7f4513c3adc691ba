"""A query unit as a process, with nodes, segments, violations and a collection that it shows: what pages are looked at
with. All of it came in by the interface, as epochs of the kind that agents send.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
from sink_packets import as_json, small_world
from tests.segments.fleet.fleet_world import SECOND, moved, record

import sojourn
from sojourn.client.query_unit import Client
from sojourn.core.arrays import PacketBatch
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.lab.two_point import LOST, TwoPointWorld, make_two_point_world
from sojourn.segments.plan import plan_point
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

# A node, a process and a segment may be called so: all of it is printable.
HOSTILE = "<img src=x onerror=document.title='owned'>"
HOSTILE_PROCESS = "<script>document.title='owned'</script>{{7*7}}"
NODES = ("alpha", "beta", "gamma", HOSTILE)
TAG = "edge"  # of alpha alone
MEMORY = 64_000
PARAMETERS = BucketArrayParameters(buckets=512, per_instance=3, bits=40, count_bits=24)
SPAN_NS = 1800 * SECOND


@dataclass
class Dashboard:
    """A running query unit, its tokens by name, and how to send it more."""

    url: str
    directory: Path
    tokens: dict[str, str] = field(repr=False)
    sequences: dict[str, int] = field(default_factory=dict)

    def client(self, who: str = "admin") -> httpx.Client:
        """Requests with a token."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_SECONDS)

    def send(self, epochs: Sequence[Epoch]) -> None:
        """Have a node send epochs."""
        with self.client(epochs[0].node) as client:
            for start in range(0, len(epochs), 20):
                body = b"".join(map(encode, epochs[start : start + 20]))
                answer = client.post("/api/v1/epochs", content=body)
                assert answer.status_code == httpx.codes.OK, answer.text

    def measure(self, node: str, at_ns: int, **used: int) -> None:
        """A minute of disk IO of some processes of a node, as its agent would have recorded it."""
        sketch = BucketArray(PARAMETERS)
        keys = tuple(ProcessKey(name.replace("__", "-"), 100 + place) for place, name in enumerate(used))
        for key, value in zip(keys, used.values(), strict=True):
            for part in range(4):
                sketch.record(key_id(key), value // 4, at_ns + part * 15 * SECOND)
        number = self.sequences.get(node, 0)
        self.sequences[node] = number + 1
        self.send([Epoch(node, "disk", number, sketch, keys)])

    def announce(self, node: str, metric: str = "disk_io", unit: str = "bytes") -> None:
        """Have a node say what it measures, and tell of its agent."""
        now = time.time_ns()
        agent = {"version": "1.0", "system": "Linux x86_64, CPython 3.11", "started_ns": now - 3600 * SECOND}
        agent |= {"spool_epochs": 3, "spool_bytes": 9000, "spool_limit_bytes": 10**8, "time_ns": now}
        agent |= {"synchronised": True, "clock_error_ns": 1_500_000}
        states = {"disk": {"state": "running", "since_ns": now - 3600 * SECOND}}
        if node == "beta":
            states["cpu"] = {"state": "failed", "since_ns": now, "reason": f"no such interface: {HOSTILE}"}
        with self.client(node) as client:
            body = {"metric": metric, "unit": unit, "granularity": "process"}
            assert client.put(f"/api/v1/nodes/{node}/streams/disk", json=body).is_success
            answer = client.put(f"/api/v1/nodes/{node}/states", json={"streams": states, "agent": agent})
            assert answer.is_success, answer.text


@contextmanager
def running_dashboard(directory: Path, *options: str, fill: bool = True) -> Iterator[Dashboard]:
    """A query unit as `sojourn serve` runs it, with a store that has something in it."""
    data = directory / "data"
    tokens = _tokens(data)
    command = [sys.executable, "-m", "sojourn", "serve", "--data", str(data), "--port", "0", *options]
    log = open(directory / "serve.log", "w")  # noqa: SIM115
    environment = {**os.environ, "PYTHONPATH": str(Path(sojourn.__file__).parents[1])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=directory, env=environment)
    try:
        assert process.stdout is not None
        dashboard = Dashboard(process.stdout.readline().strip(), directory, tokens)
        if fill:
            fill_fleet(dashboard)
        yield dashboard
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        log.close()


def _tokens(data: Path) -> dict[str, str]:
    with_store = open_store(str(data))
    try:
        tokens = TokenStore(with_store)
        made = {node: tokens.create(Role.NODE, name="n", node=node)[1] for node in NODES}
        made["admin"] = tokens.create(Role.ADMIN, name="ops")[1]
        made["viewer"] = tokens.create(Role.VIEWER, name="wall")[1]
        made["edge"] = tokens.create(Role.VIEWER, name="partner", tags=[TAG])[1]
        made["leaving"] = tokens.create(Role.VIEWER, name="leaving")[1]
    finally:
        with_store.close()
    return made


def fill_fleet(dashboard: Dashboard) -> None:
    """Nodes with half an hour of disk IO, and a path of two segments with as much traffic."""
    for node in NODES:
        dashboard.announce(node)
    now = time.time_ns()
    random = np.random.default_rng(5)
    for minutes in range(28, 0, -4):
        for node in NODES:
            used = {name: int(random.gamma(3, 2e6)) for name in ("mosquitto", "backup", "postgres", "nginx")}
            used[HOSTILE_PROCESS] = 4_000_000
            dashboard.measure(node, now - minutes * 60 * SECOND, **used)
    with dashboard.client() as client:
        client.put("/api/v1/nodes/alpha/tags", json={"tags": [TAG]}).raise_for_status()
    with Client(dashboard.url, dashboard.tokens["admin"]) as admin:
        create_segments(dashboard, admin)


def create_segments(dashboard: Dashboard, admin: Client) -> None:
    """uplink (both directions) from alpha to beta, core from beta to gamma: one path."""
    how = {"memory_bytes": MEMORY, "epoch_ns": 10 * SECOND}
    admin.create_segment("uplink", "alpha:eth0", "beta:eth1", both_directions=True, **how)
    admin.create_segment("core", "beta:eth2", "gamma:eth0", **how)
    world = timely(make_two_point_world(seed=3, flows=60, packets=30_000, duration_ns=240 * SECOND, load=0.9), SECOND)
    back = replace(
        world,
        sender=replace(world.sender, packet_id=world.sender.packet_id + np.uint64(1)),
        receiver=replace(world.receiver, packet_id=world.receiver.packet_id + np.uint64(1)),
    )
    there, reverse = admin.segment("uplink")["directions"]
    send_segment(dashboard, world, there)
    send_segment(dashboard, back, reverse)
    # What left the first segment enters the second one.
    send_segment(dashboard, _further(world), admin.segment("core")["directions"][0])
    eventually(lambda: len(admin.rank_segments(0)) == 3)


def send_segment(dashboard: Dashboard, world: TwoPointWorld, direction: dict) -> None:
    """Have both ends of a direction send what they recorded of a world."""
    plan = plan_point(MEMORY, flows=len(world.keys), loss=0.01)
    for end, batch in (("from", world.sender), ("to", world.receiver)):
        node, stream = direction[end]["node"], direction[end]["stream"]
        epochs = record(batch, plan, world, epoch_ns=10 * SECOND)
        dashboard.send([replace(epoch, node=node, stream=stream) for epoch in epochs])


def timely(world: TwoPointWorld, before_ns: int) -> TwoPointWorld:
    """The same world, over a while before now."""
    by = time.time_ns() - before_ns - int(world.sender.time_ns.max())
    return replace(world, sender=moved(world.sender, by), receiver=moved(world.receiver, by))


def _further(world: TwoPointWorld) -> TwoPointWorld:
    """What arrived, on its way through a second queue."""
    random = np.random.default_rng(9)
    sent: PacketBatch = world.receiver
    delay = (1_000_000 + random.gamma(2, 400_000, len(sent))).astype(np.int64)
    arrival = np.maximum.accumulate(sent.time_ns + delay)
    kept = random.random(len(sent)) > 0.004
    received = replace(sent, time_ns=arrival).select(np.flatnonzero(kept))
    return TwoPointWorld(sent, received, np.where(kept, arrival - sent.time_ns, LOST), world.keys, world.seed)


def send_collection(dashboard: Dashboard, name: str = "field", *, last_ns: int | None = None) -> None:
    """A field of sensors whose packets a sink at gamma collects, the last a minute ago; solved when this returns."""
    rows = small_world()
    by = (time.time_ns() - 60 * SECOND if last_ns is None else last_ns) - max(row[4] for row in rows)
    with dashboard.client("gamma") as client:
        body = [as_json((*row[:3], row[3] + by, row[4] + by, row[5])) for row in rows]
        field_path = f"/api/v1/nodes/gamma/collections/{name}"
        assert client.post(f"{field_path}/packets", json=body).is_success
        assert client.post(f"{field_path}/close").is_success
        eventually(lambda: (state := client.get(field_path).json()) and not state["solving"] and not state["open"])


def send_large_collection(dashboard: Dashboard, *, nodes: int) -> None:
    """A field of so many sensors, each two hops or more from the sink, of which each sends two packets."""
    random = np.random.default_rng(11)
    parent = {node: int(random.integers(1, max(2, node // 3 + 1))) for node in range(2, nodes + 1)}
    begin = time.time_ns() - 120 * SECOND
    rows: list[dict[str, object]] = []
    for number in range(2):
        for node in range(1, nodes + 1):
            path = [node]
            while path[-1] in parent:
                path.append(parent[path[-1]])
            left = begin + (number * nodes + node) * 20_000_000
            delays = random.integers(2_000_000, 9_000_000, len(path))
            row = (node, number, (*path, 0), left, left + int(delays.sum()), int(delays[0]) // 1_000_000 * 1_000_000)
            rows.append(as_json(row))
    with dashboard.client("gamma") as client:
        field_path = "/api/v1/nodes/gamma/collections/large"
        assert client.post(f"{field_path}/packets", json=rows).is_success
        assert client.post(f"{field_path}/close").is_success
        eventually(lambda: (state := client.get(field_path).json()) and not state["solving"] and not state["open"])
