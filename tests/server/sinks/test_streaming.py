"""Packets as a sink gets them, against the whole trace at once; and a query unit that is killed meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from query_unit import Unit
from sink_packets import CBOR, FIELD, closed, rows_of, settled, small_world

from collection_worlds import MS, simulated
from sojourn.tomography.bounds.constraints import bound
from sojourn.tomography.comparison import evaluate
from sojourn.tomography.delays.estimate import estimate
from sojourn.tomography.reading import encode_packets
from sojourn.tomography.trace import CollectionTrace
from waiting import PATIENCE_SECONDS


def all_hops(client: httpx.Client) -> dict[tuple[int, int, int], dict]:
    """Every hop that is answered, by origin, number and place."""
    found, after = {}, {}
    while True:
        page = client.get(f"{FIELD}/hops", params={"limit": 5000, **after}).raise_for_status().json()
        found |= {(hop["origin"], hop["seq"], hop["hop"]): hop for hop in page["hops"]}
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


def arrivals(trace: CollectionTrace, hops: dict[tuple[int, int, int], dict]) -> np.ndarray:
    times = trace.t0_ns[trace.owner].copy()
    for place in np.flatnonzero(trace.is_visit).tolist():
        packet = trace.owner[place]
        hop = hops[int(trace.origin[packet]), int(trace.shown_sequence[packet]), int(trace.hop[place])]
        assert hop["node"] == trace.node[place]
        times[place + 1] = times[place] + hop["delay_ns"]
    return times


@pytest.mark.parametrize(
    ("seed", "ack_loss", "loss"), [pytest.param(91, 0.0, 0.0, marks=pytest.mark.long), (92, 0.1, 0.05)]
)
def test_answers_of_a_stream_are_as_good_as_those_of_the_whole_trace(
    unit: Unit, seed: int, ack_loss: float, loss: float
) -> None:
    trace, truth = simulated(100, seed, ack_loss, loss, packets=12)
    rows = rows_of(trace)
    with unit.client("admin") as client:
        for begin in range(0, len(rows), 100):
            client.post(f"{FIELD}/packets", content=encode_packets(rows[begin : begin + 100]), headers=CBOR)
            settled(client)
        before = settled(client)
        assert before["windows"] >= 4
        state = closed(client)
        assert (state["solved"], state["late"]) == (len(rows), 0)
        arrival = arrivals(trace, all_hops(client))
    bounds = bound(trace)
    whole = estimate(trace, bounds)
    streamed, batch = (evaluate(trace, bounds, times, truth).mae_ms for times in (arrival, whole.arrival_ns))
    visit = np.flatnonzero(trace.is_visit)
    difference = np.abs(np.diff(arrival)[visit] - whole.delay_ns[visit]).mean() / MS
    print(f"seed {seed}: error {streamed:.3f} ms streamed, {batch:.3f} ms at once; differing by {difference:.3f} ms")
    assert streamed < 1.05 * batch
    assert difference < 0.3
    assert state["sums"] == ("equations" if bounds.is_exact else "upper bounds")


@contextmanager
def serving(directory: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`sojourn serve` as its own process, and an admin's client."""
    command = [sys.executable, "-m", "sojourn.cli.main", "serve", "--data", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        headers = {"Authorization": f"Bearer {(directory / 'admin-token').read_text().strip()}"}
        transport = httpx.HTTPTransport(retries=5)
        with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_SECONDS, transport=transport) as client:
            yield process, client
    finally:
        process.kill()
        process.wait(timeout=PATIENCE_SECONDS)
        process.stdout.close()
        process.stderr.close()


def test_a_killed_query_unit_has_what_it_acknowledged_and_goes_on_where_it_was(tmp_path: Path) -> None:
    rows = small_world(packets=10)
    half = encode_packets(rows[: len(rows) // 2])
    with serving(tmp_path) as (process, client):
        assert client.post(f"{FIELD}/packets", content=half, headers=CBOR).json()["stored"] == len(rows) // 2
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    with serving(tmp_path) as (process, client):
        taken_up = settled(client)
        assert taken_up["packets"] == len(rows) // 2
        assert taken_up["windows"] >= 1
        result = client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR).json()
        assert (result["stored"], result["duplicates"]) == (len(rows) - len(rows) // 2, len(rows) // 2)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE_SECONDS)
    with serving(tmp_path) as (process, client):
        state = closed(client)
        assert (state["packets"], state["solved"], state["late"]) == (len(rows), len(rows), 0)
        assert len(all_hops(client)) == sum(len(row[2]) - 1 for row in rows)
        process.terminate()
        assert process.wait(timeout=PATIENCE_SECONDS) in (0, -signal.SIGTERM)
