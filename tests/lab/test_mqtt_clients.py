"""The lab's MQTT clients keep their rates and time their acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sojourn.lab.mqtt_clients import MqttClient, run_clients

ANSWER_SECONDS = 0.02
CONNECT, PUBLISH = 0x10, 0x32


async def _broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts, and acknowledges every message after a fixed time."""
    while head := await reader.read(2):
        body = await reader.readexactly(head[1])
        if head[0] == CONNECT:
            writer.write(bytes.fromhex("20020000"))
        elif head[0] == PUBLISH:
            assert len(body) == 2 + 3 + 2 + 100
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, writer.write, b"\x40\x02" + body[5:7])
    writer.close()


async def _refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(bytes.fromhex("20020005"))


async def _run(
    clients: list[MqttClient],
    seconds: float,
    broker: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        await run_clients(clients, "127.0.0.1", port, seconds=seconds, seed=1)
    finally:
        server.close()


def test_clients_keep_their_rates_and_time_every_acknowledgement() -> None:
    """Poisson counts of 40 and 160 within 5 deviations."""
    slow, fast = MqttClient(0, 20), MqttClient(0, 80)
    asyncio.run(_run([slow, fast], 2.0, _broker))
    assert abs(len(slow.trips_ns) - 40) < 5 * 40**0.5
    assert abs(len(fast.trips_ns) - 160) < 5 * 160**0.5
    assert min(slow.trips_ns + fast.trips_ns) >= 0.9 * ANSWER_SECONDS * 1e9


def test_a_broker_that_refuses_is_an_error() -> None:
    with pytest.raises(ConnectionError, match="refused: Not authorized"):
        asyncio.run(_run([MqttClient(0, 1)], 1.0, _refuse))
