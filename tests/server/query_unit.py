"""A real query unit on a loopback port, with a token of every role."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cbor2
import httpx

from mosquitto_broker import Broker
from sojourn.core.hashing import hash_bytes
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.node.agent.configuration import configuration_of
from sojourn.node.agent.running import transport_for
from sojourn.node.transports.broker import broker_at
from sojourn.node.transports.transport import Transport
from sojourn.server.door.connections import Door
from sojourn.server.door.limits import Limits
from sojourn.server.ingest.link import BrokerOptions
from sojourn.server.options import ServeOptions
from sojourn.server.serving import make_server
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

PARAMETERS = BucketArrayParameters(buckets=16, per_instance=2, bits=24, count_bits=16)
LIMITS = Limits(body_bytes=100_000, batch_epochs=20, requests_per_second=10_000, burst=10_000, live_seconds=60.0)


def make_epoch(
    sequence: int = 0,
    *,
    node: str = "alpha",
    stream: str = "disk",
    time_ns: int = 10**9,
    values: tuple[int, ...] = (3, 4),
) -> Epoch:
    sketch = BucketArray(PARAMETERS)
    keys = tuple(ProcessKey("p", i) for i in range(len(values)))
    for key, value in zip(keys, values, strict=True):
        sketch.record(key_id(key), value, time_ns)
    return Epoch(node, stream, sequence, sketch, keys)


def undecodable(sequence: int = 0, *, time_ns: int = 10**9) -> bytes:
    """An epoch whose header and check word are right, and whose counters are not: a bit after the last one is set."""
    sketch = BucketArray(BucketArrayParameters(buckets=3, per_instance=1, bits=5))
    sketch.record(1, 2, time_ns)
    _, body, _ = cbor2.loads(encode(Epoch("alpha", "disk", sequence, sketch, ())))
    items = cbor2.loads(body)
    items[7] = b"\xff\xff"
    body = cbor2.dumps(items)
    return cbor2.dumps([1, body, hash_bytes(body) & 0xFFFFFFFF])


@dataclass(frozen=True)
class Unit:
    """A running query unit."""

    url: str
    store: EpochStore
    tokens: dict[str, str]
    broker: Broker | None = None

    @property
    def address(self) -> str:
        """Where agents reach it."""
        return self.url if self.broker is None else self.broker.url

    @property
    def nowhere(self) -> str:
        """An address of the same kind where nobody is."""
        return f"{self.address.partition('://')[0]}://127.0.0.1:9"

    def transport(self, who: str = "alpha", *, instance: str | None = None) -> Transport:
        """A node's way to it."""
        tables = {"node": who, "server": self.address, "token": self.tokens[who], "spool": "unused"}
        return transport_for(configuration_of(tables, where="test"), instance)

    def client(self, who: str | None = "admin", **options) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_SECONDS, **options)


def bound_socket() -> Door:
    """A port of loopback that is taken, where nobody listens yet."""
    return Door("127.0.0.1", 0)


def running_unit(
    directory: Path,
    limits: Limits = LIMITS,
    *,
    listening: Door | None = None,
    broker: Broker | None = None,
    broker_options: BrokerOptions | None = None,
    **options,
) -> Iterator[Unit]:
    """A unit on a free port, or at a door that is bound already; with a broker, agents reach it there."""
    store = open_store(directory)
    tokens = TokenStore(store)
    texts = {
        "admin": tokens.create(Role.ADMIN, name="a")[1],
        "viewer": tokens.create(Role.VIEWER, name="v")[1],
        "alpha": tokens.create(Role.NODE, name="n", node="alpha")[1],
        "beta": tokens.create(Role.NODE, name="n", node="beta")[1],
    }
    listening = listening or bound_socket()
    if broker is not None:
        broker_options = BrokerOptions(access=broker_at(broker.url, where="test"))
    settings = ServeOptions(data=str(directory), limits=limits, graceful_seconds=1, broker=broker_options, **options)
    server = make_server(store, listening, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    eventually(lambda: server.started, pause=0.01)
    unit = Unit(f"http://127.0.0.1:{listening.getsockname()[1]}", store, texts, broker)
    if broker is not None:
        eventually(lambda: is_at_broker(unit), pause=0.01)
    yield unit
    server.should_exit = True
    thread.join(PATIENCE_SECONDS)
    store.close()


def is_at_broker(unit: Unit) -> bool:
    """Whether a unit takes messages at its broker."""
    with unit.client("viewer") as client:
        return "sojourn_broker_connected 1.0" in client.get("/metrics").text
