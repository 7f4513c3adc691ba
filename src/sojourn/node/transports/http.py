"""The HTTP transport: JSON and CBOR over one connection that is kept open.

Every answer is checked (`exchange`: status, content type, size; here: its form), so that whatever answers in the query
unit's place is a failure to be tried again, and never an acknowledgement.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sojourn.node.transports.exchange import checked_address, checked_list, checked_object, connect, exchange
from sojourn.node.transports.transport import (
    Announcement,
    Asked,
    NameTakenError,
    Receipt,
    RefusedError,
    StreamState,
    TooLargeError,
    TransportError,
    UnacceptableError,
)

TIMEOUT_SECONDS = 10.0
MOST_ANSWER_BYTES = 4 << 20
MOST_SEQUENCE = 2**63 - 1
CBOR = "application/cbor"
# Tells agents with one node's name apart.
INSTANCE_HEADER = "Sojourn-Instance"
STATUSES = ("stored", "duplicate", "conflict")
# The query unit's own answers (JSON) that are about what a request holds. A proxy's page means nothing of that kind.
UNACCEPTABLE = (400, 422)


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
    ) -> None:
        self.server = checked_address(server, where="server")
        self._node = f"/api/v1/nodes/{quote(node, safe='')}"
        self._identity = {INSTANCE_HEADER: instance} if instance else {}
        self._timeout = timeout_seconds
        self._deadline: float | None = None
        self._client = connect(self.server, token, timeout_seconds=timeout_seconds, ca_file=ca_file)

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
            return exchange(self._client, self.server, method, path, seconds=allowed, **how)
        except RefusedError as error:
            if error.status == 409:
                raise NameTakenError(error.what, where=self.server) from None
            if error.status == 413:
                raise TooLargeError(error.what, where=self.server, status=413) from None
            if error.status in UNACCEPTABLE:
                raise UnacceptableError(error.what, where=self.server, status=error.status) from None
            raise

    def announce(self, announcement: Announcement) -> int | None:
        body = {name: value for name, value in vars(announcement).items() if value and name != "stream"}
        path = f"{self._node}/streams/{quote(announcement.stream, safe='')}"
        answer = checked_object(self._call("PUT", path, json=body), self.server, last_sequence=(int, type(None)))
        last: int | None = answer["last_sequence"]
        if last is not None and not 0 <= last <= MOST_SEQUENCE:
            raise TransportError(f"answered with the number {last} of an epoch", where=self.server)
        return last

    def send(self, epochs: list[bytes]) -> list[Receipt]:
        answer = self._call("POST", "/api/v1/epochs", content=b"".join(epochs), headers={"Content-Type": CBOR})
        results = checked_object(answer, self.server, results=list)["results"]
        rows = checked_list(results, self.server, stream=str, sequence=int, status=str)
        receipts = [Receipt(row["stream"], row["sequence"], row["status"]) for row in rows]
        if len(receipts) != len(epochs) or not all(receipt.status in STATUSES for receipt in receipts):
            raise TransportError(
                f"acknowledged {len(receipts)} of {len(epochs)} epochs, or in unknown words", where=self.server
            )
        return receipts

    def assignments(self) -> tuple[int, dict[str, dict[str, object]]]:
        answer = self._call("GET", f"{self._node}/assignments")
        checked = checked_object(answer, self.server, version=int, streams=dict)
        for table in checked["streams"].values():
            checked_object(table, self.server)
        return checked["version"], checked["streams"]

    def report_states(self, states: Mapping[str, StreamState]) -> None:
        body = {
            name: {
                "state": "running" if state.is_running else "failed",
                "since_ns": state.since_ns,
                "reason": state.reason or None,
            }
            for name, state in states.items()
        }
        answer = self._call("PUT", f"{self._node}/states", json={"streams": body})
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
        if answer is None:
            return None
        asked = checked_object(answer, self.server, id=str, streams=list, from_ns=int, to_ns=int)
        if not all(isinstance(name, str) for name in asked["streams"]):
            raise TransportError("asked about streams without names", where=self.server)
        return Asked(asked["id"], tuple(asked["streams"]), asked["from_ns"], asked["to_ns"])

    def answer(self, question: Asked, epochs: list[bytes], *, more: bool = False) -> None:
        path = f"{self._node}/requests/{quote(question.id, safe='')}"
        how: dict[str, Any] = {"params": {"more": "true"}} if more else {}
        content = b"".join(epochs)
        self._call("POST", path, content=content, headers={"Content-Type": CBOR}, may_be_empty=True, **how)
