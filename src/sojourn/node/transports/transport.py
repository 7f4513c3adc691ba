"""Transports: how a node reaches the query unit.

A transport is a small protocol, so that HTTP and others serve the same agent. Every method may raise `TransportError`
(the query unit is out of reach, or something else answers in its place; try again later), its kind `NameTakenError`
(another agent has the node's name; try again later), or `RefusedError` (it answered no; trying again will not help).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sojourn.core.errors import ServerError


class TransportError(ServerError):
    """The query unit cannot be reached, is too busy, or something else answers in its place."""


class NameTakenError(TransportError):
    """Another agent sends under the node's name; once that one is silent or released, this one is accepted."""


class NoAnswerError(TransportError):
    """It was reached, and did not answer in time."""


class RefusedError(ServerError):
    """The query unit answered no; ``status`` is HTTP's number for why."""

    def __init__(self, what: str, *, where: str = "", action: str = "", status: int = 400) -> None:
        super().__init__(what, where=where, action=action)
        self.status = status


class UnacceptableError(RefusedError):
    """It answered no to what the request holds; the rest without what is wrong may be accepted."""


class TooLargeError(UnacceptableError):
    """The request is too large for the query unit, or for a proxy before it; less may be accepted."""


# A query unit's own answers that are about what a request holds. A proxy's page means nothing of that kind.
UNACCEPTABLE = (400, 422)


def refusal(status: int, detail: str, server: str) -> TransportError | RefusedError:
    """The error for a query unit's no: one to try again after where it is too busy, or another number's meaning."""
    if status == 429 or status >= 500:
        return TransportError(f"answered {status}: {detail}", where=server)
    return RefusedError(f"refuses ({status}): {detail}", where=server, status=status)


def for_node(error: RefusedError) -> TransportError | RefusedError:
    """What a refusal means to the agent that sent the request."""
    if error.status == 409:
        return NameTakenError(error.what, where=error.where)
    if error.status == 413:
        return TooLargeError(error.what, where=error.where, status=413)
    if error.status in UNACCEPTABLE:
        return UnacceptableError(error.what, where=error.where, status=error.status)
    return error


@dataclass(frozen=True)
class Announcement:
    """What a stream measures."""

    stream: str
    metric: str
    unit: str
    granularity: str
    values: str | None = None
    acknowledged: tuple[int, int] | None = None  # the numbers of it that were called stored, as far as there is no gap


@dataclass(frozen=True)
class Receipt:
    """What became of one epoch: stored, duplicate or conflict."""

    stream: str
    sequence: int
    status: str


@dataclass(frozen=True)
class StreamState:
    """How a stream fares: since when it is recorded, or since when not and why."""

    since_ns: int
    reason: str = ""

    @property
    def is_running(self) -> bool:
        return not self.reason


@dataclass(frozen=True, kw_only=True)
class AgentReport:
    """What an agent says of itself: its version, what waits in its spool, and its clock."""

    version: str
    system: str
    started_ns: int
    time_ns: int
    spool_epochs: int
    spool_bytes: int
    spool_limit_bytes: int
    spool_trouble: str | None = None
    synchronised: bool | None = None
    clock_error_ns: int | None = None


@dataclass(frozen=True)
class Asked:
    """A question about some streams, in a range of time: what of it has the query unit not been sent?

    With a ``ledger``'s question (`segments.fleet.ledgers.naming`) it is about packets that the first of them has sent.
    """

    id: str
    streams: tuple[str, ...]
    from_ns: int = -(2**63)
    to_ns: int = 2**63 - 1
    ledger: str = ""


class Transport(Protocol):
    """What an agent needs of its query unit."""

    def announce(self, announcement: Announcement) -> int | None:
        """Tell what a stream measures; the last sequence number that is stored of it."""

    def send(self, epochs: list[bytes]) -> list[Receipt]:
        """Hand over encoded epochs, all or none; `UnacceptableError` if one of them, or their size, is the reason."""

    def assignments(self) -> tuple[int, dict[str, dict[str, object]]]:
        """The version and the streams that the node shall record."""

    def report_states(self, states: Mapping[str, StreamState], agent: AgentReport | None = None) -> None:
        """Tell how all streams fare, and the agent itself; streams left out are no longer recorded."""

    def leave(self) -> None:
        """Let another agent have the node's name at once."""

    def next_question(self, wait_seconds: float) -> Asked | None:
        """Wait for a question about the current epoch."""

    def answer(self, asked: Asked, epochs: list[bytes], *, more: bool = False) -> None:
        """Answer it with epochs (or a ledger's reply); `more` says that this is not all."""

    def hurry(self, seconds: float) -> None:
        """End every call that is made from now on after so many seconds at the latest."""

    def close(self) -> None:
        """Let go of connections."""
