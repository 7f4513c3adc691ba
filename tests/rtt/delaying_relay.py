"""A relay of UDP datagrams that delays each, where the kernel has no netem: ``delaying_relay.py PORT ADDRESS MS``.

Clients that send to the port reach the same port of the address, and get its answers, each datagram so many
milliseconds later.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

READY = "ready"
Address = tuple[str, int]


class Relay(asyncio.DatagramProtocol):
    """Hands datagrams on after a time, in their order."""

    def __init__(self, seconds: float, hand_on: Callable[[bytes, Address], None]) -> None:
        self.seconds, self.hand_on = seconds, hand_on

    def datagram_received(self, data: bytes, addr: Address) -> None:
        asyncio.get_running_loop().call_later(self.seconds, self.hand_on, data, addr)


async def run(port: int, address: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    upstream: dict[Address, asyncio.Task[asyncio.DatagramTransport]] = {}

    async def opened(client: Address) -> asyncio.DatagramTransport:
        relay = Relay(seconds, lambda data, _: front.sendto(data, client))
        transport, _ = await loop.create_datagram_endpoint(lambda: relay, remote_addr=(address, port))
        return transport

    def towards_server(data: bytes, client: Address) -> None:
        task = upstream.setdefault(client, loop.create_task(opened(client)))
        task.add_done_callback(lambda done: done.result().sendto(data))

    front, _ = await loop.create_datagram_endpoint(lambda: Relay(seconds, towards_server), ("0.0.0.0", port))
    print(READY, flush=True)
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]) / 1000))
