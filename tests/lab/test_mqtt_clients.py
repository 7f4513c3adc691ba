"""The lab's MQTT clients speak the protocol, keep their rates and time their answers."""

from __future__ import annotations

import asyncio

import pytest

from sojourn.lab.mqtt_clients import MqttClient, connect_packet, publish_packet, run_clients

ANSWER_SECONDS = 0.02


def test_packets_are_those_of_the_standard() -> None:
    assert connect_packet("c1") == bytes.fromhex("100e00044d5154540402025800026331")
    published = publish_packet("t/3", 0x0102)
    assert published[:9] == bytes.fromhex("326b0003742f330102")
    assert len(published) == 109
    with pytest.raises(ValueError, match="bytes"):
        publish_packet("t" * 30, 1)


async def _broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts, and answers every message after a fixed time."""
    while head := await reader.read(2):
        body = await reader.readexactly(head[1])
        if head[0] == 0x10:
            writer.write(bytes.fromhex("20020000"))
        else:
            topic = int.from_bytes(body[:2], "big")
            asyncio.get_running_loop().call_later(
                ANSWER_SECONDS, writer.write, b"\x40\x02" + body[2 + topic : 4 + topic]
            )
    writer.close()


async def _run(clients: list[MqttClient], seconds: float) -> None:
    server = await asyncio.start_server(_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await run_clients(clients, "127.0.0.1", port, seconds=seconds, seed=1)
    server.close()


def test_clients_keep_their_rates_and_time_every_answer() -> None:
    """Poisson counts of 40 and 160 within 5 deviations."""
    slow, fast = MqttClient(0, 20), MqttClient(0, 80)
    asyncio.run(_run([slow, fast], 2.0))
    assert abs(len(slow.trips_ns) - 40) < 5 * 40**0.5
    assert abs(len(fast.trips_ns) - 160) < 5 * 160**0.5
    assert min(slow.trips_ns + fast.trips_ns) >= 0.9 * ANSWER_SECONDS * 1e9


async def _refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(bytes.fromhex("20020005"))


async def _run_refused() -> None:
    server = await asyncio.start_server(_refuse, "127.0.0.1", 0)
    try:
        await run_clients([MqttClient(0, 1)], "127.0.0.1", server.sockets[0].getsockname()[1], seconds=1, seed=1)
    finally:
        server.close()


def test_a_broker_that_refuses_is_an_error() -> None:
    with pytest.raises(ConnectionError, match="refused"):
        asyncio.run(_run_refused())
