"""Many small MQTT 3.1.1 clients in one process: each publishes at a rate of its own (QoS 1) and times every answer.

``python -m sojourn.lab.mqtt_clients ADDRESS PORT SECONDS SEED SOURCE_PORT:RATE …`` connects from those source ports,
publishes messages of 100 bytes at exponentially distributed times, waits for the last answers, and prints for each
source port how many were answered after how long: ``[{"port", "messages", "mean_ns"}]``.

Only what that takes of the protocol is here: CONNECT, CONNACK, PUBLISH, PUBACK (OASIS MQTT 3.1.1, §3.1 to 3.4).
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from dataclasses import dataclass, field

__all__ = ["MqttClient", "connect_packet", "publish_packet", "run_clients"]

PAYLOAD = bytes(100)
CONNACK, PUBACK = 0x20, 0x40
ANSWER_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 600


def _field(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def _packet(first: int, body: bytes) -> bytes:
    """A packet whose rest is shorter than 128 bytes, so that one byte holds its length."""
    if len(body) > 127:
        raise ValueError(f"a body of {len(body)} bytes")
    return bytes([first, len(body)]) + body


def connect_packet(client: str) -> bytes:
    """CONNECT with a clean session."""
    return _packet(
        0x10, _field(b"MQTT") + b"\x04\x02" + KEEP_ALIVE_SECONDS.to_bytes(2, "big") + _field(client.encode())
    )


def publish_packet(topic: str, number: int) -> bytes:
    """PUBLISH of 100 bytes with QoS 1."""
    return _packet(0x32, _field(topic.encode()) + number.to_bytes(2, "big") + PAYLOAD)


@dataclass
class MqttClient:
    """One connection; ``trips_ns`` are the times from each message to its answer."""

    source_port: int
    rate: float
    trips_ns: list[int] = field(default_factory=list)
    _sent: dict[int, int] = field(default_factory=dict)

    async def run(self, address: str, port: int, seconds: float, seed: int) -> None:
        """Connect, publish for a while, and wait for the answers."""
        reader, writer = await asyncio.open_connection(address, port, local_addr=("0.0.0.0", self.source_port))
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.write(connect_packet(f"c{self.source_port}"))
        answer = await reader.readexactly(4)
        if answer[0] != CONNACK or answer[3] != 0:
            raise ConnectionError(f"the broker refused: {answer.hex()}")
        answers = asyncio.ensure_future(self._hear(reader))
        try:
            await self._publish(writer, seconds, random.Random(f"{seed} {self.source_port}"))
            end = time.monotonic() + ANSWER_SECONDS
            while self._sent and time.monotonic() < end:
                await asyncio.sleep(0.05)
        finally:
            answers.cancel()
            writer.close()

    async def _publish(self, writer: asyncio.StreamWriter, seconds: float, times: random.Random) -> None:
        start, number = time.monotonic(), 0
        at = times.expovariate(self.rate)
        while at < seconds:
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            number = number % 65535 + 1
            self._sent[number] = time.monotonic_ns()
            writer.write(publish_packet(f"t/{number % 10}", number))
            at += times.expovariate(self.rate)

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        while True:
            answer = await reader.readexactly(4)
            sent = self._sent.pop(int.from_bytes(answer[2:], "big"), None) if answer[0] == PUBACK else None
            if sent is not None:
                self.trips_ns.append(time.monotonic_ns() - sent)


async def run_clients(clients: list[MqttClient], address: str, port: int, *, seconds: float, seed: int) -> None:
    """All of them at once."""
    await asyncio.gather(*(client.run(address, port, seconds, seed) for client in clients))


def main(address: str, port: str, seconds: str, seed: str, *flows: str) -> None:
    clients = [MqttClient(int(source), float(rate)) for source, _, rate in (flow.partition(":") for flow in flows)]
    asyncio.run(run_clients(clients, address, int(port), seconds=float(seconds), seed=int(seed)))
    rows = [
        {"port": c.source_port, "messages": len(c.trips_ns), "mean_ns": sum(c.trips_ns) / max(len(c.trips_ns), 1)}
        for c in clients
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
