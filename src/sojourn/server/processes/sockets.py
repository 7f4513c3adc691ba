"""WebSockets of pages: an ingest process holds one to the browser and one to the planning process, message by message.

Guarantee: the planning process sees the handshake as the browser made it, from the address that it came from, and
refuses whom it would refuse by itself; messages go both ways in order, one at a time, so that who does not read is not
sent to; when one side closes, so does the other, with its code. While the planning process cannot be reached, or is
gone, the browser is told to try again. Imported where there is a dashboard, which brings what speaks the protocol.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from sojourn.server.processes.forwarding import HOP_HEADERS, Forwarder, introduction

# Of the connection between the two processes, which makes its own.
OWN_HEADERS = HOP_HEADERS | {b"host"}
OWN_PREFIX = b"sec-websocket-"
OPEN_SECONDS, CLOSE_SECONDS = 10.0, 1.0
GOING_AWAY, POLICY, AGAIN = 1001, 1008, 1013
# Codes that say how a connection ended, and are never sent.
_NEVER_SENT = frozenset({1005, 1006, 1015})


class SocketForwarder:
    """Passes WebSockets on over a channel. An ASGI application."""

    def __init__(self, forwarder: Forwarder, *, most_bytes: int) -> None:
        self._forwarder, self._most_bytes = forwarder, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # that it wants to connect
        try:
            link = await self._connect(scope)
        except WebSocketException:
            await send({"type": "websocket.close", "code": POLICY})
            return
        except (OSError, EOFError):
            await send({"type": "websocket.close", "code": AGAIN})
            return
        try:
            await send({"type": "websocket.accept", "subprotocol": link.subprotocol})
            await _pass_on(link, receive, send)
        finally:
            await link.close(GOING_AWAY)

    async def _connect(self, scope: Scope) -> ClientConnection:
        names = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in names if not n.startswith(OWN_PREFIX)]
        name, value = introduction(scope)
        headers = [one for one in headers if one[0] != name.decode()] + [(name.decode(), value.decode())]
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "localhost")
        query = scope["query_string"].decode("latin-1")
        return await unix_connect(
            uri=f"ws://{host}{scope['raw_path'].decode('latin-1')}{'?' + query if query else ''}",
            sock=self._forwarder.connected(),
            subprotocols=[Subprotocol(one) for one in scope["subprotocols"]] or None,
            additional_headers=headers,
            user_agent_header=None,
            compression=None,
            proxy=None,
            open_timeout=OPEN_SECONDS,
            close_timeout=CLOSE_SECONDS,
            ping_interval=None,
            max_size=self._most_bytes,
            max_queue=1,
        )


async def _pass_on(link: ClientConnection, receive: Receive, send: Send) -> None:
    """Messages both ways, until one side closes."""
    up, down = asyncio.create_task(_up(link, receive)), asyncio.create_task(_down(link, send))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (up, down):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _up(link: ClientConnection, receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            await link.close(_sendable(message.get("code"), GOING_AWAY))
            return
        text = message.get("text")
        await link.send(message["bytes"] if text is None else text)


async def _down(link: ClientConnection, send: Send) -> None:
    try:
        while True:
            await send(_message(await link.recv()))
    except ConnectionClosed:
        await send({"type": "websocket.close", "code": _sendable(link.close_code, AGAIN)})


def _message(data: str | bytes) -> Message:
    return {"type": "websocket.send", "text" if isinstance(data, str) else "bytes": data}


def _sendable(code: int | None, otherwise: int) -> int:
    return otherwise if code is None or code in _NEVER_SENT else code
