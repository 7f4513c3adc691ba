"""The HTTP transport: JSON and CBOR over one connection that is kept open.

Every answer is checked (`exchange`: status, content type, size; here: its form), so that whatever answers in the query
unit's place is a failure to be tried again, and never an acknowledgement. Where the token is refused, its file is read
again: one that was rotated takes effect without a restart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sojourn.core.errors import UsageError
from sojourn.node.transports.exchange import checked_address, connect, exchange, read_token
from sojourn.node.transports.forms import (
    Assigned,
    assigned,
    checked_object,
    described,
    last_sequence,
    question,
    receipts,
    told_states,
)
from sojourn.node.transports.transport import (
    AgentReport,
    Announcement,
    Asked,
    Receipt,
    RefusedError,
    StreamState,
    for_node,
)

TIMEOUT_SECONDS = 10.0
MOST_ANSWER_BYTES = 4 << 20
CBOR = "application/cbor"
UNAUTHORISED = 401
# Tells agents with one node's name apart.
INSTANCE_HEADER = "Sojourn-Instance"


class HttpTransport:
    """A node's way to a query unit at a URL; safe from several threads."""

    def __init__(
        self,
        server: str,
        token: str,
        *,
        node: str,
        instance: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        ca_file: Path | None = None,
        token_file: Path | None = None,
    ) -> None:
        self.server = checked_address(server, where="server")
        self._node = f"/api/v1/nodes/{quote(node, safe='')}"
        self._identity = {INSTANCE_HEADER: instance} if instance else {}
        self._timeout = timeout_seconds
        self._deadline: float | None = None
        self._token, self._token_file = token, token_file
        self._client = connect(self.server, token, ca_file=ca_file)

    def close(self) -> None:
        self._client.close()

    def hurry(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def _call(
        self, method: str, path: str, *, seconds: float | None = None, may_be_empty: bool = False, **how: Any
    ) -> Any:
        allowed = self._timeout if seconds is None else seconds
        if self._deadline is not None:
            allowed = max(0.1, min(allowed, self._deadline - time.monotonic()))
        headers = {**how.pop("headers", {}), **self._identity}
        how |= {"headers": headers, "may_be_empty": may_be_empty, "most_bytes": MOST_ANSWER_BYTES}
        try:
            used = self._token
            try:
                return exchange(self._client, self.server, method, path, seconds=allowed, **how)
            except RefusedError as error:
                if error.status != UNAUTHORISED or not self._renew(used):
                    raise
                return exchange(self._client, self.server, method, path, seconds=allowed, **how)
        except RefusedError as error:
            raise for_node(error) from None

    def _renew(self, used: str) -> bool:
        """Take the token that its file has now; whether it is another one than was used."""
        if self._token_file is not None:
            with suppress(UsageError):  # it may be written just now: the old one is tried once more, later
                self._token = read_token(self._token_file)
                self._client.headers["Authorization"] = f"Bearer {self._token}"
        return self._token != used

    def announce(self, announcement: Announcement) -> int | None:
        path = f"{self._node}/streams/{quote(announcement.stream, safe='')}"
        return last_sequence(self._call("PUT", path, json=described(announcement)), self.server)

    def send(self, epochs: list[bytes]) -> list[Receipt]:
        answer = self._call("POST", "/api/v1/epochs", content=b"".join(epochs), headers={"Content-Type": CBOR})
        return receipts(answer, self.server, sent=len(epochs))

    def assignments(self) -> Assigned:
        return assigned(self._call("GET", f"{self._node}/assignments"), self.server)

    def report_states(self, states: Mapping[str, StreamState], agent: AgentReport | None = None) -> None:
        answer = self._call("PUT", f"{self._node}/states", json=told_states(states, agent))
        checked_object(answer, self.server, streams=dict)

    def leave(self) -> None:
        if self._identity:
            self._call("POST", f"{self._node}/release")

    def next_question(self, wait_seconds: float) -> Asked | None:
        answer = self._call(
            "GET",
            f"{self._node}/requests",
            params={"wait": wait_seconds},
            seconds=self._timeout + wait_seconds,
            may_be_empty=True,
        )
        return None if answer is None else question(answer, self.server)

    def answer(self, asked: Asked, epochs: list[bytes], *, more: bool = False) -> None:
        path = f"{self._node}/requests/{quote(asked.id, safe='')}"
        how: dict[str, Any] = {"params": {"more": "true"}} if more else {}
        content = b"".join(epochs)
        self._call("POST", path, content=content, headers={"Content-Type": CBOR}, may_be_empty=True, **how)
