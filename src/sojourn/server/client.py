"""A client of the query unit, for the command line and for programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

from sojourn.core.errors import ServerError, UsageError
from sojourn.mplane.measurement_rows import from_row, to_row
from sojourn.mplane.measurements import SegmentMeasurement
from sojourn.node.connection import checked_address, connect, detail_of, read_token
from sojourn.node.transport import TransportError

__all__ = ["Client", "token_from"]

TIMEOUT_SECONDS = 60.0
TOKEN_VARIABLE = "SOJOURN_TOKEN"


def token_from(given: str | None, file: Path | None = None) -> str:
    """The token given, or that in a file, or that of the environment."""
    if not given and file is not None:
        return read_token(file)
    token = given or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise UsageError(
            "a token is needed", action=f"give --token-file, or set {TOKEN_VARIABLE}; sojourn token create makes one"
        )
    return token


class Client:
    """Requests to one query unit; a context manager.

    `TransportError` says that trying again later may help; any other `ServerError`, that it will not.
    """

    def __init__(self, server: str, token: str, *, ca_file: Path | None = None) -> None:
        self.server = checked_address(server, where="--server")
        self._client = connect(self.server, token, timeout_seconds=TIMEOUT_SECONDS, ca_file=ca_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _call(self, method: str, path: str, **how: Any) -> Any:
        try:
            response = self._client.request(method, path, **how)
        except httpx.HTTPError as error:
            raise TransportError(f"cannot be reached ({error})", where=self.server, action="is it running?") from None
        if response.is_success:
            return response.json()
        if response.status_code == 429 or response.status_code >= 500:
            raise TransportError(f"answered {response.status_code}: {detail_of(response)}", where=self.server)
        raise ServerError(f"refuses ({response.status_code}): {detail_of(response)}", where=self.server)

    def query(self, question: Mapping[str, object]) -> list[dict[str, Any]]:
        """One answer, or with ``top`` the largest instances'."""
        answers: list[dict[str, Any]] = self._call("POST", "/api/v1/query", json=dict(question))
        return answers

    def nodes(self, *, tag: str | None = None) -> list[dict[str, Any]]:
        """All nodes, or those with a tag."""
        nodes: list[dict[str, Any]] = self._call("GET", "/api/v1/nodes", params={"tag": tag} if tag else {})
        return nodes

    def streams(self, node: str) -> list[dict[str, Any]]:
        """What a node measures."""
        streams: list[dict[str, Any]] = self._call("GET", f"/api/v1/nodes/{quote(node, safe='')}/streams")
        return streams

    def segments(self, from_ns: int, to_ns: int, *, node: str | None = None) -> list[SegmentMeasurement]:
        """What was measured of segments in intervals that begin in a range of time."""
        asked = {"from_ns": from_ns, "to_ns": to_ns, **({"node": node} if node else {})}
        rows = self._call("GET", "/api/v1/segments", params=asked)["measurements"]
        return [from_row(row, where=self.server) for row in rows]

    def add_segments(self, measurements: Sequence[SegmentMeasurement]) -> list[str]:
        """Hand over what was measured of segments; what became of each."""
        body = {"measurements": [to_row(one) for one in measurements]}
        statuses: list[str] = self._call("POST", "/api/v1/segments", json=body)["statuses"]
        return statuses
