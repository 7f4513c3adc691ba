"""A port of this machine, also on hosts of a lab that have no way to it.

Guarantee: a program on such a host that connects to 127.0.0.1 and the port reaches the same port of this machine.
Nothing is added to the machine's own network: the listening sockets are made in the hosts' namespaces.
Cost: one thread; every byte is copied twice.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from sojourn.lab.namespaces import Host

_LOOPBACK = "127.0.0.1"
_PIECE = 1 << 16
_BACKLOG = 64


@contextmanager
def relayed(port: int, hosts: Sequence[Host]) -> Iterator[None]:
    """Relay the port until the context ends; connections that are open then are closed."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=f"relay to port {port}", daemon=True)
    thread.start()  # of this machine's network, so that what it connects to is here
    try:
        for host in hosts:
            with host.entered():
                listening = socket.create_server((_LOOPBACK, port), backlog=_BACKLOG)
            listens = asyncio.start_server(lambda *streams: _relay(port, *streams), sock=listening)
            asyncio.run_coroutine_threadsafe(listens, loop).result()
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        far_reader, far_writer = await asyncio.open_connection(_LOOPBACK, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    with suppress(OSError):
        writer.close()
