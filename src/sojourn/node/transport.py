"""Transports: how a node reaches the query unit.

A transport is a small protocol, so that HTTP and others serve the same agent. Every method may raise `TransportError`
(the query unit is out of reach; try again later) or `RefusedError` (it answered no; trying again will not help).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sojourn.core.errors import ServerError

__all__ = ["Announcement", "Asked", "Receipt", "RefusedError", "Transport", "TransportError"]


class TransportError(ServerError):
    """The query unit cannot be reached, or is too busy."""


class RefusedError(ServerError):
    """The query unit answered no."""


@dataclass(frozen=True)
class Announcement:
    """What a stream measures."""

    stream: str
    metric: str
    unit: str
    granularity: str


@dataclass(frozen=True)
class Receipt:
    """What became of one epoch: stored, duplicate or conflict."""

    stream: str
    sequence: int
    status: str


@dataclass(frozen=True)
class Asked:
    """A question about some streams, in a range of time: what of it has the query unit not been sent?"""

    id: str
    streams: tuple[str, ...]
    from_ns: int = -(2**63)
    to_ns: int = 2**63 - 1


class Transport(Protocol):
    """What an agent needs of its query unit."""

    def announce(self, announcement: Announcement) -> int | None:
        """Tell what a stream measures; the last sequence number that is stored of it."""

    def send(self, epochs: list[bytes]) -> list[Receipt]:
        """Hand over encoded epochs, all or none."""

    def assignments(self) -> tuple[int, dict[str, dict[str, object]]]:
        """The version and the streams that the node shall record."""

    def next_question(self, wait_seconds: float) -> Asked | None:
        """Wait for a question about the current epoch."""

    def answer(self, question: Asked, epochs: list[bytes], *, more: bool = False) -> None:
        """Answer it with epochs; `more` says that this is not all."""

    def close(self) -> None:
        """Let go of connections."""
