"""The HTTP transport: JSON and CBOR over one connection that is kept open."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from sojourn.node.connection import checked_address, connect, detail_of
from sojourn.node.transport import Announcement, Asked, Receipt, RefusedError, TransportError

__all__ = ["HttpTransport"]

TIMEOUT_SECONDS = 10.0
CBOR = "application/cbor"


class HttpTransport:
    """A node's way to a query unit at a URL; safe from several threads."""

    def __init__(
        self,
        server: str,
        token: str,
        *,
        node: str,
        timeout_seconds: float = TIMEOUT_SECONDS,
        ca_file: Path | None = None,
    ) -> None:
        self.server = checked_address(server, where="server")
        self._node = f"/api/v1/nodes/{quote(node, safe='')}"
        self._timeout = timeout_seconds
        self._client = connect(self.server, token, timeout_seconds=timeout_seconds, ca_file=ca_file)

    def close(self) -> None:
        self._client.close()

    def _call(self, method: str, path: str, **how: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **how)
        except httpx.HTTPError as error:
            raise TransportError(f"cannot be reached ({error})", where=self.server, action="is it running?") from None
        if response.status_code == 429 or response.status_code >= 500:
            raise TransportError(f"answered {response.status_code}: {detail_of(response)}", where=self.server)
        if response.status_code >= 400:
            raise RefusedError(f"refuses ({response.status_code}): {detail_of(response)}", where=self.server)
        return response

    def announce(self, announcement: Announcement) -> int | None:
        body = {
            "metric": announcement.metric,
            "unit": announcement.unit,
            "granularity": announcement.granularity,
        }
        path = f"{self._node}/streams/{quote(announcement.stream, safe='')}"
        last: int | None = self._call("PUT", path, json=body).json()["last_sequence"]
        return last

    def send(self, epochs: list[bytes]) -> list[Receipt]:
        response = self._call("POST", "/api/v1/epochs", content=b"".join(epochs), headers={"Content-Type": CBOR})
        return [Receipt(r["stream"], r["sequence"], r["status"]) for r in response.json()["results"]]

    def assignments(self) -> tuple[int, dict[str, dict[str, object]]]:
        answer = self._call("GET", f"{self._node}/assignments").json()
        return answer["version"], answer["streams"]

    def next_question(self, wait_seconds: float) -> Asked | None:
        response = self._call(
            "GET", f"{self._node}/requests", params={"wait": wait_seconds}, timeout=self._timeout + wait_seconds
        )
        if response.status_code == 204:
            return None
        asked = response.json()
        return Asked(asked["id"], tuple(asked["streams"]), asked["from_ns"], asked["to_ns"])

    def answer(self, question: Asked, epochs: list[bytes], *, more: bool = False) -> None:
        path = f"{self._node}/requests/{quote(question.id, safe='')}"
        how = {"params": {"more": "true"}} if more else {}
        self._call("POST", path, content=b"".join(epochs), headers={"Content-Type": CBOR}, **how)
