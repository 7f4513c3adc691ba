"""A thousand segments: whether one core keeps up with their epochs, and how long questions take over an hour.

Generated: packets of a dozen flows through a lossy queue, recorded as agents do into 4 KB every 10 s at both ends. A
query unit on one core gets them over HTTP as fast as it takes them, and stores and answers them; an hour of answers is
made of these, moved in time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np

from bench.timing import best_seconds, family_seconds
from sojourn.client.query_unit import Client
from sojourn.core.arrays import PacketBatch
from sojourn.core.keys import FlowKey
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.lab.fleet import Fleet, query_unit
from sojourn.lab.two_point import START_NS, TwoPointWorld, make_two_point_world
from sojourn.segments.fleet.markers import MarkerCuts
from sojourn.segments.fleet.point import Point
from sojourn.segments.fleet.runs import PlacedEpoch, align
from sojourn.segments.fleet.segment import FleetSegment
from sojourn.segments.plan import plan_point
from sojourn.segments.record import KeyReports, PointRecorder
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.control.segments import SegmentControl
from sojourn.server.door.limits import Limits
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.runs import RunStore
from sojourn.store.segments import pair_of

SEGMENTS, WORLDS = 1000, 20
SECOND = 1_000_000_000
EPOCH_NS, MEMORY, SPAN_NS = 10 * SECOND, 4096, 180 * SECOND
FLOWS, PACKETS = 12, 18_000
HOUR_NS = 3600 * SECOND
BATCH = 64
MOST_SECONDS = 1200.0
NOTE = "One core for the query unit with all its processes, and for the client; CPU is that of the query unit."


def table() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store")
        control = SegmentControl(store, AssignmentStore(store), replace(Limits(), segments=2 * SEGMENTS))
        for number in range(SEGMENTS):
            control.create(_segment(number))
        store.close()
        with query_unit(Path(folder)) as fleet:
            kept_up = _keep_up(fleet)
        store = open_store(Path(folder) / "store")
        _make_an_hour(store)
        store.close()
        with query_unit(Path(folder)) as fleet:
            return [*kept_up, *_questions(fleet)]


Worlds = list[tuple[list[Epoch], list[Epoch]]]


def _segment(number: int) -> FleetSegment:
    ends = [Point(node=f"n{number}-{end}", interface="eth0", direction=way) for end, way in (("a", "out"), ("b", "in"))]
    return FleetSegment(
        name=f"s{number}",
        sender=ends[0],
        receiver=ends[1],
        memory_bytes=MEMORY,
        planned_bytes=MEMORY,
        epoch_ns=EPOCH_NS,
    )


def _recorded(batch: PacketBatch, keys: dict[int, FlowKey]) -> list[Epoch]:
    """A point's epochs, as an agent that polls every second records them."""
    current = [batch]
    plan = plan_point(MEMORY, flows=FLOWS, loss=0.01)
    reports = KeyReports(lambda rows: [keys[int(i)] for i in current[0].flow_id[rows]], flows=FLOWS)
    recorder = PointRecorder("n", "s", plan.stream, keys=reports, markers=MarkerCuts(EPOCH_NS))
    epochs: list[Epoch] = []
    for start in range(START_NS, START_NS + SPAN_NS + 2 * SECOND, SECOND):
        rows = slice(*np.searchsorted(batch.time_ns, [start, start + SECOND]).tolist())
        current[0] = batch.select(rows)
        epochs += recorder.record(current[0])
        epochs += recorder.close_before(start + SECOND)
    return epochs


def _worlds() -> Worlds:
    def made(seed: int) -> TwoPointWorld:
        return make_two_point_world(seed=seed, flows=FLOWS, packets=PACKETS, duration_ns=SPAN_NS, load=0.6)

    worlds = [made(seed) for seed in range(WORLDS)]
    return [(_recorded(one.sender, one.keys), _recorded(one.receiver, one.keys)) for one in worlds]


def _bodies(worlds: Worlds) -> Iterator[bytes]:
    """All epochs of all nodes, in the order of their time, as many in a request as a busy collector would send."""
    rows: list[tuple[int, bytes]] = []
    for number in range(SEGMENTS):
        segment = _segment(number)
        for point, epochs in zip((segment.sender, segment.receiver), worlds[number % WORLDS], strict=True):
            for epoch in epochs:
                named = replace(epoch, node=point.node, stream=point.stream(number + 1))
                rows.append((epoch.last_ns or 0, encode(named)))
    rows.sort(key=lambda row: row[0])
    for start in range(0, len(rows), BATCH):
        yield b"".join(data for _, data in rows[start : start + BATCH])


def _runs(worlds: Worlds) -> tuple[int, int]:
    """How many runs there are to answer, and packets in them."""

    def placed(epochs: list[Epoch]) -> list[PlacedEpoch]:
        return [PlacedEpoch(e.sequence, e.cut, e.first_ns, e.last_ns, e.recorded) for e in epochs if e.cut is not None]

    found = [align(placed(sent), placed(received)) for sent, received in worlds]
    packets = [sum(epoch.recorded for run in runs for epoch in run.sent) for runs in found]
    rows = [number % WORLDS for number in range(SEGMENTS)]
    return sum(len(found[row]) for row in rows), sum(packets[row] for row in rows)


def _keep_up(fleet: Fleet) -> list[str]:
    worlds = _worlds()
    bodies, (expected, packets) = list(_bodies(worlds)), _runs(worlds)
    size = sum(map(len, bodies))
    begun, used = time.monotonic(), family_seconds(fleet.pid)
    with httpx.Client(base_url=fleet.url, headers={"Authorization": f"Bearer {fleet.token}"}, timeout=120.0) as client:
        for body in bodies:
            client.post("/api/v1/epochs", content=body).raise_for_status()
    stored, stored_cpu = time.monotonic() - begun, family_seconds(fleet.pid) - used
    store = open_store(fleet.directory / "store")
    runs, answers, answered = RunStore(store), 0, 0
    while answered < packets and time.monotonic() < begun + MOST_SECONDS:
        time.sleep(1.0)
        totals = runs.totals(0, 2**63 - 1).values()
        answers, answered = sum(one.runs for one in totals), sum(one.sent for one in totals)
    whole, whole_cpu = time.monotonic() - begun, family_seconds(fleet.pid) - used
    store.close()
    span, epochs = SPAN_NS / SECOND, sum(len(end) for n in range(SEGMENTS) for end in worlds[n % WORLDS])
    return [
        f"| {SEGMENTS:,} segments, {span:.0f} s of epochs, {MEMORY} bytes of memory | seconds | CPU | "
        f"of one core for {span:.0f} s |",
        "|---|---:|---:|---:|",
        f"| {epochs:,} epochs ({size / 1e6:.0f} MB) stored, some answered | {stored:.1f} | {stored_cpu:.1f} | "
        f"{stored_cpu / span:.0%} |",
        f"| all stored, {answered / packets:.0%} of {expected:,} runs answered, as {answers:,} | {whole:.1f} | "
        f"{whole_cpu:.1f} | {whole_cpu / span:.0%} |",
    ]


def _make_an_hour(store: EpochStore) -> None:
    """The runs that were answered, again and again until they fill an hour."""
    runs = RunStore(store)
    segments = [(number + 1, _segment(number)) for number in range(SEGMENTS)]
    known = runs.pairs([pair_of(one.sender, one.receiver, generation) for generation, one in segments])
    for pair in known:
        rows = [row for _, row in runs.between([pair.number], 0, 2**62, most=10_000)]
        moved = [
            replace(row, start_ns=row.start_ns + shift, end_ns=row.end_ns + shift)
            for shift in range(SPAN_NS, HOUR_NS, SPAN_NS)
            for row in rows
        ]
        runs.add(pair.number, moved, until=(pair.sent_until + 1, pair.received_until + 1), now_ns=time.time_ns())


def _questions(fleet: Fleet) -> list[str]:
    span = START_NS, START_NS + HOUR_NS
    with Client(fleet.url, fleet.token) as client:
        client.query_segment("s1", from_ns=span[0], to_ns=span[1], live=False)  # starts a worker
        one = best_seconds(lambda: client.query_segment("s7", from_ns=span[0], to_ns=span[1], live=False))
        top = best_seconds(lambda: client.rank_segments(*span, top=10, by="loss"))
        rows = client.rank_segments(*span, top=10, by="loss")
    return [
        f"| one segment, the last hour ({rows[0]['runs']} runs) | {one:.2f} | | |",
        f"| top 10 of all segments, the last hour | {top:.2f} | | |",
    ]
