"""A client of the query unit, for the command line and for programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from sojourn.core.errors import UsageError
from sojourn.mplane.measurements import SegmentMeasurement, from_row, to_row
from sojourn.node.transports.exchange import (
    Exchange,
    NoAnswerError,
    checked_address,
    checked_list,
    checked_object,
    connect,
    exchange,
    read_token,
)
from sojourn.node.transports.transport import TransportError

__all__ = ["Client", "token_from"]

TIMEOUT_SECONDS = 60.0  # longer than a query may wait and take
NARROW = "narrow --from/--to, ask for one node, or raise --timeout"
MOST_ANSWER_BYTES = 128 << 20
ANSWER_FIELDS = (
    "value", "low", "high", "unit", "samples", "method", "epochs", "live", "covered", "stat", "instance", "reason",
    "notes",
)  # fmt: skip
NODE_FIELDS = ("name", "last_seen_ns", "listening", "tags", "metrics")
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

    def __init__(
        self, server: str, token: str, *, timeout_seconds: float = TIMEOUT_SECONDS, ca_file: Path | None = None
    ) -> None:
        self.server = checked_address(server, where="--server")
        self._timeout_seconds = timeout_seconds
        self._client = connect(self.server, token, timeout_seconds=timeout_seconds, ca_file=ca_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _call(self, method: str, path: str, **how: Any) -> Any:
        asked = Exchange(method, path, self._timeout_seconds, MOST_ANSWER_BYTES, how=how)
        try:
            return exchange(self._client, self.server, asked)
        except NoAnswerError:
            what = f"the query unit did not answer within {self._timeout_seconds:g} s: it may still be computing"
            raise TransportError(what, where=self.server, action=NARROW) from None

    def _object(self, method: str, path: str, *, having: Sequence[str] = (), **how: Any) -> dict[str, Any]:
        """An answer that is an object with some fields."""
        return checked_object(self._call(method, path, **how), self.server, **dict.fromkeys(having, object))

    def _objects(self, method: str, path: str, *, having: Sequence[str] = (), **how: Any) -> list[dict[str, Any]]:
        """An answer that is a list of objects with some fields."""
        return checked_list(self._call(method, path, **how), self.server, **dict.fromkeys(having, object))

    def query(self, question: Mapping[str, object]) -> list[dict[str, Any]]:
        """One answer, or with ``top`` the largest instances'."""
        return self._objects("POST", "/api/v1/query", having=ANSWER_FIELDS, json=dict(question))

    def nodes(self, *, tag: str | None = None) -> list[dict[str, Any]]:
        """All nodes, or those with a tag."""
        params = {"tag": tag} if tag else {}
        return self._objects("GET", "/api/v1/nodes", having=NODE_FIELDS, params=params)

    def release(self, node: str) -> list[str]:
        """Let another agent have a node's name at once; the streams that it may take over."""
        path = f"/api/v1/nodes/{quote(node, safe='')}/release"
        streams: list[str] = self._object("POST", path, having=["streams"])["streams"]
        return streams

    def states(self, node: str) -> dict[str, dict[str, Any]]:
        """How a node's streams fare, as its agent told last."""
        path = f"/api/v1/nodes/{quote(node, safe='')}/states"
        streams: dict[str, dict[str, Any]] = self._object("GET", path, having=["streams"])["streams"]
        return streams

    def streams(self, node: str) -> list[dict[str, Any]]:
        """What a node measures."""
        return self._objects("GET", f"/api/v1/nodes/{quote(node, safe='')}/streams", having=["name", "metric"])

    def segments(self, from_ns: int, to_ns: int, *, node: str | None = None) -> list[SegmentMeasurement]:
        """What was measured of segments in intervals that begin in a range of time."""
        asked = {"from_ns": from_ns, "to_ns": to_ns, **({"node": node} if node else {})}
        rows = self._object("GET", "/api/v1/segments", having=["measurements"], params=asked)["measurements"]
        return [from_row(row, where=self.server) for row in checked_list(rows, self.server)]

    def add_segments(self, measurements: Sequence[SegmentMeasurement]) -> list[str]:
        """Hand over what was measured of segments; what became of each."""
        body = {"measurements": [to_row(one) for one in measurements]}
        statuses: list[str] = self._object("POST", "/api/v1/segments", having=["statuses"], json=body)["statuses"]
        if not isinstance(statuses, list) or len(statuses) != len(measurements):
            raise TransportError(f"did not acknowledge {len(measurements)} measurements", where=self.server)
        return statuses
