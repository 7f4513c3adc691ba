"""Many small MQTT 3.1.1 clients in one process: each publishes at a rate of its own (QoS 1) and times every answer.

``python -m sojourn.lab.mqtt_clients ADDRESS PORT SECONDS SEED SOURCE_PORT:RATE …`` connects from those source ports,
publishes messages of 100 bytes at exponentially distributed times, waits for the last acknowledgements, and prints for
each source port how many were acknowledged after how long: ``[{"port", "messages", "mean_ns"}]``.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

PAYLOAD = bytes(100)
ANSWER_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 600
MAX_IN_FLIGHT = 65_535  # paho's default of 20 would hold messages back and lengthen their round trips


@dataclass
class MqttClient:
    """One connection; ``trips_ns`` are the times from each message to its acknowledgement."""

    source_port: int
    rate: float
    _sent_ns: list[int] = field(default_factory=list)
    _acknowledged_ns: list[int] = field(default_factory=list)

    @property
    def trips_ns(self) -> list[int]:
        """Brokers acknowledge messages in their order (MQTT 3.1.1, §4.6)."""
        return [end - start for start, end in zip(self._sent_ns, self._acknowledged_ns, strict=False)]

    async def run(self, address: str, port: int, seconds: float, seed: int) -> None:
        """Connect, publish for a while, and wait for the acknowledgements."""
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[str] = loop.create_future()
        client = Client(CallbackAPIVersion.VERSION2, f"c{self.source_port}", protocol=MQTTv311)
        client.max_inflight_messages_set(MAX_IN_FLIGHT)
        client.on_connect = lambda _client, _data, _flags, reason, _properties: connected.set_result(str(reason))
        client.on_publish = lambda *_: self._acknowledged_ns.append(time.monotonic_ns())
        client.connect(address, port, KEEP_ALIVE_SECONDS, bind_address="0.0.0.0", bind_port=self.source_port)
        connection: Any = client.socket()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # paho's own thread for each connection would delay sending by milliseconds where there are many.
        loop.add_reader(connection, client.loop_read)
        try:
            if (reason := await asyncio.wait_for(connected, ANSWER_SECONDS)) != "Success":
                raise ConnectionError(f"the broker refused: {reason}")
            await self._publish(client, seconds, random.Random(f"{seed} {self.source_port}"))
            end = time.monotonic() + ANSWER_SECONDS
            while len(self._acknowledged_ns) < len(self._sent_ns) and time.monotonic() < end:
                await asyncio.sleep(0.05)
        finally:
            loop.remove_reader(connection)
            client.disconnect()

    async def _publish(self, client: Client, seconds: float, times: random.Random) -> None:
        start = time.monotonic()
        at = times.expovariate(self.rate)
        while at < seconds:
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            self._sent_ns.append(time.monotonic_ns())
            client.publish(f"t/{len(self._sent_ns) % 10}", PAYLOAD, qos=1)
            at += times.expovariate(self.rate)


async def run_clients(clients: Sequence[MqttClient], address: str, port: int, *, seconds: float, seed: int) -> None:
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
