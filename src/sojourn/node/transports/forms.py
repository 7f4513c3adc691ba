"""What a node and a query unit say to each other, in JSON: the same over every transport, checked where it arrives.

An answer of another form is a `TransportError`: something else answered in the query unit's place, which may be gone at
the next try, and never an acknowledgement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sojourn.node.transports.transport import AgentReport, Announcement, Asked, Receipt, StreamState, TransportError

MOST_SEQUENCE = 2**63 - 1
STATUSES = ("stored", "duplicate", "conflict")
_PAGE = "is there a proxy or a login page in between?"

Assigned = tuple[int, dict[str, dict[str, object]]]


def parsed(body: bytes, server: str) -> Any:
    """What an answer of JSON says."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise not_ours(server, "something that is not JSON, though it is called so") from None


def not_ours(server: str, what: str) -> TransportError:
    """The error for an answer that cannot be a query unit's."""
    return TransportError(f"answered with {what}", where=server, action=_PAGE)


def checked_object(answer: Any, server: str, **kinds: type | tuple[type, ...]) -> dict[str, Any]:
    """An object with these fields of these kinds; a `TransportError` where it is another one."""
    if not isinstance(answer, dict):
        raise not_ours(server, "JSON of another form")
    for name, kind in kinds.items():
        value = answer.get(name)
        if name not in answer or not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise not_ours(server, f"JSON of another form (without its {name})")
    return answer


def checked_list(answer: Any, server: str, **kinds: type | tuple[type, ...]) -> list[dict[str, Any]]:
    """A list of objects with these fields of these kinds."""
    if not isinstance(answer, list):
        raise not_ours(server, "JSON of another form")
    return [checked_object(item, server, **kinds) for item in answer]


def described(announcement: Announcement) -> dict[str, object]:
    """What a stream measures, without its name."""
    return {name: value for name, value in vars(announcement).items() if value and name != "stream"}


def told_states(states: Mapping[str, StreamState], agent: AgentReport | None) -> dict[str, object]:
    """How all streams of a node fare, and its agent."""
    streams: dict[str, dict[str, object]] = {
        name: {
            "state": "running" if state.is_running else "failed",
            "since_ns": state.since_ns,
            "reason": state.reason or None,
        }
        for name, state in states.items()
    }
    return {"streams": streams} if agent is None else {"streams": streams, "agent": dict(vars(agent))}


def last_sequence(answer: Any, server: str) -> int | None:
    """The number of a stream that was stored last, from the answer to an announcement."""
    last: int | None = checked_object(answer, server, last_sequence=(int, type(None)))["last_sequence"]
    if last is not None and not 0 <= last <= MOST_SEQUENCE:
        raise TransportError(f"answered with the number {last} of an epoch", where=server)
    return last


def receipts(answer: Any, server: str, *, sent: int) -> list[Receipt]:
    """What became of the epochs that were sent, one for each."""
    results = checked_object(answer, server, results=list)["results"]
    rows = checked_list(results, server, stream=str, sequence=int, status=str)
    found = [Receipt(row["stream"], row["sequence"], row["status"]) for row in rows]
    if len(found) != sent or not all(receipt.status in STATUSES for receipt in found):
        raise TransportError(f"acknowledged {len(found)} of {sent} epochs, or in unknown words", where=server)
    return found


def assigned(answer: Any, server: str) -> Assigned:
    """The version and the streams that a node shall record."""
    checked = checked_object(answer, server, version=int, streams=dict)
    for table in checked["streams"].values():
        checked_object(table, server)
    return checked["version"], checked["streams"]


def question(answer: Any, server: str) -> Asked:
    """What a node is asked."""
    asked = checked_object(answer, server, id=str, streams=list, from_ns=int, to_ns=int)
    if not all(isinstance(name, str) for name in asked["streams"]):
        raise TransportError("asked about streams without names", where=server)
    ledger = asked.get("ledger") or ""
    if not isinstance(ledger, str):
        raise not_ours(server, "JSON of another form (its ledger is no text)")
    return Asked(asked["id"], tuple(asked["streams"]), asked["from_ns"], asked["to_ns"], ledger)
