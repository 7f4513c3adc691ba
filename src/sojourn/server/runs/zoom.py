"""One flow's packets on a segment, from what the ledgers of both ends replied; a query worker's part.

Guarantee: clocks are those of the segment's runs around that time, and of these packets themselves, so that delays are
as sure as those of all answers. Cost: reading what runs of some minutes hold for the clocks, and pairing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL

from sojourn.core.errors import InputError
from sojourn.core.keys import flow_fields, parse_key
from sojourn.core.units import format_duration, plural
from sojourn.segments.fleet.clocks import WAS_SET
from sojourn.segments.fleet.ledgers.naming import NO_LEDGER
from sojourn.segments.fleet.ledgers.packets import FlowPackets, PacketsReply
from sojourn.segments.fleet.ledgers.zoom import PacketsResult, Zoomed
from sojourn.server.runs.clocks import followed_clocks
from sojourn.server.runs.questions import clock_fields, known_pairs
from sojourn.store.epochs import read_store
from sojourn.store.runs import Pair, RunStore

# Of the stretch that was asked for, what may be missing without a word: packets that still wait in the kernel.
WAITING_SHARE, WAITING_NS = 0.05, 500_000_000


@dataclass(frozen=True, kw_only=True)
class ZoomWork:
    """A question about a flow's packets and both ends' replies, None of a node that gave none."""

    name: str
    pair: Pair
    flow: str
    length_ns: int
    replies: tuple[bytes | None, bytes | None]


def answer_packets(url: URL, work: ZoomWork) -> dict[str, Any] | None:
    """The packets of a flow, as `PacketsResult` gives them; None if an end keeps no ledger (any more)."""
    ends = [_told(reply) for reply in work.replies]
    nodes = work.pair.from_node, work.pair.to_node
    if any(isinstance(end, str) and end == NO_LEDGER for end in ends):
        return None
    for node, end in zip(nodes, ends, strict=True):
        if isinstance(end, str):
            raise InputError(f"node {node} does not tell: {end}", where=f"segment {work.name}", action="try again")
    sent, received = (end for end in ends if isinstance(end, FlowPackets))
    zoomed = Zoomed.of(sent, received)
    store = RunStore(read_store(url))
    [clock] = followed_clocks(store, known_pairs(store, [work.pair]), [zoomed])
    result = PacketsResult.of(
        work.name,
        flow_fields(parse_key(work.flow)),  # type: ignore[arg-type]
        zoomed,
        clock,
        clock=clock_fields([clock]),
        warnings=_warnings(received, zoomed, clock.was_set),
        notes=_notes(work, sent, received, zoomed),
    )
    return result.to_dict()


def _told(reply: bytes | None) -> FlowPackets | str:
    """An end's packets, or why there are none."""
    if reply is None:
        return "it did not answer in time"
    found = PacketsReply.from_bytes(reply)
    return found.reason if found.packets is None else found.packets


def _warnings(received: FlowPackets, zoomed: Zoomed, was_set: bool) -> list[str]:
    found = []
    if received.missed_ns >= zoomed.first_ns:
        found.append("packets passed the receiver while its kernel had no room for them: of some it is not known")
    if was_set:
        found.append(f"{WAS_SET}: delays are not known")
    return found


def _notes(work: ZoomWork, sent: FlowPackets, received: FlowPackets, zoomed: Zoomed) -> list[str]:
    notes = []
    if sent.left_out or received.left_out:
        notes.append(f"{plural(zoomed.left_out, 'older packet')} of the flow left out: ask for a shorter time, or more")
    else:
        missing_ns = work.length_ns - (zoomed.last_ns - zoomed.first_ns)
        if missing_ns > max(WAITING_NS, WAITING_SHARE * work.length_ns):
            length = format_duration(max(zoomed.last_ns - zoomed.first_ns, 0))
            notes.append(f"both ledgers hold {length} of the {format_duration(work.length_ns)} that were asked for")
    if not len(sent):
        notes.append(f"the sender's ledger has no packet of {work.flow} in this time")
    elif not zoomed.is_there.any():
        notes.append(f"none of its packets is in the ledger of {work.pair.to_node}: not on this segment, or all lost")
    if zoomed.copies:
        notes.append(f"{plural(zoomed.copies, 'packet')} seen twice at the sender's point count once")
    return notes
