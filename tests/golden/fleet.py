"""A stored fleet that does not change: a real `sojourn serve` with epochs of fixed seeds and times, sent over HTTP.

Four nodes (two with the tag ``east``) with three streams each: operations of processes, memory of processes, round
trips of flows. Twelve epochs of ten seconds from `START_NS` on. What is imported from the project to make epochs is
`encoded_epoch` alone.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from .worlds import SOJOURN, run

__all__ = ["running_fleet"]

START_NS = 1_700_000_000_000_000_000
EPOCH_NS = 10 * 10**9
EPOCHS = 12
NODES = ("alpha", "beta", "gamma", "delta")
EAST = ("alpha", "beta")
STREAMS = {
    "disk": {"metric": "disk_io", "unit": "operations", "granularity": "process", "values": "increments"},
    "memory": {"metric": "memory", "unit": "bytes", "granularity": "process", "values": "samples"},
    "trips": {"metric": "rtt", "unit": "ns", "granularity": "flow", "values": "samples"},
}
INSTANCES = 14
WAIT_SECONDS = 60

# Name of the instance, value, time.
Measurement = tuple[str, int, int]


def encoded_epoch(node: str, stream: str, sequence: int, measurements: list[Measurement]) -> bytes:
    """An epoch of a bucket array as an agent sends it, with the instances that were active."""
    from sojourn.core.keys import key_id, parse_key
    from sojourn.epochs.epoch import Epoch
    from sojourn.epochs.wire import encode
    from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

    size = BucketArrayParameters(buckets=24, per_instance=3, bits=48, count_bits=16, salt=sequence)
    sketch = BucketArray(size)
    for name, value, time_ns in measurements:
        sketch.record(key_id(parse_key(name)), value, time_ns)
    keys = tuple(parse_key(name) for name in dict.fromkeys(name for name, _, _ in measurements))
    return encode(Epoch(node, stream, sequence, sketch, keys))


@contextmanager
def running_fleet(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the fleet until the context ends; the environment that `sojourn query` finds it with."""
    data = folder / "store"
    with open(folder / "serve.log", "wb") as log:
        server = subprocess.Popen(
            [str(SOJOURN), "serve", "--data", str(data), "--port", "0"], stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().decode().strip()
        if not url:
            raise RuntimeError(f"sojourn serve did not start: {(folder / 'serve.log').read_text()}")
        admin = (data / "admin-token").read_text().strip()
        for node in NODES:
            _fill(url, _token(folder, data, node), node)
        for node in EAST:
            _call(url, admin, "PUT", f"/api/v1/nodes/{node}/tags", json.dumps({"tags": ["east"]}).encode())
        yield {"SOJOURN_SERVER": url, "SOJOURN_TOKEN": admin}
    finally:
        server.terminate()
        server.wait(WAIT_SECONDS)


def _token(folder: Path, data: Path, node: str) -> str:
    made = run(f"token create --role node --node {node} --data {data} -w {node}.token", folder, {})
    if made.returncode != 0:
        raise RuntimeError(made.stderr.decode())
    return (folder / f"{node}.token").read_text().strip()


def _fill(url: str, token: str, node: str) -> None:
    for stream, description in STREAMS.items():
        _call(url, token, "PUT", f"/api/v1/nodes/{node}/streams/{stream}", json.dumps(description).encode())
        dice = random.Random(f"{node} {stream}")
        epochs = [encoded_epoch(node, stream, number, _measured(dice, stream, number)) for number in range(EPOCHS)]
        _call(url, token, "POST", "/api/v1/epochs", b"".join(epochs), "application/cbor")


def _measured(dice: random.Random, stream: str, number: int) -> list[Measurement]:
    """Every instance measures some values, very different between instances, spread over one epoch."""
    measurements = []
    for instance in range(INSTANCES):
        name = (
            f"10.3.0.{instance}:4{instance:04} > 10.4.0.1:1883 tcp"
            if stream == "trips"
            else f"proc{instance}[{instance}]"
        )
        scale = {"disk": 2**instance, "memory": 1 << 20, "trips": 1_000_000 * (1 + instance)}[stream]
        for _ in range(dice.randrange(1, 6)):
            time_ns = START_NS + number * EPOCH_NS + dice.randrange(EPOCH_NS)
            measurements.append((name, int(scale * dice.uniform(0.5, 1.5)), time_ns))
    return sorted(measurements, key=lambda item: item[2])


def _call(url: str, token: str, method: str, path: str, body: bytes, kind: str = "application/json") -> None:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    with urlopen(Request(url + path, data=body, method=method, headers=headers), timeout=WAIT_SECONDS) as answer:
        answer.read()
