"""Captures on both sides of a device that translates addresses or ports (``--identity payload``).

A pass over both captures finds which flow behind the device is which flow before it (`capture.flows.translation`). From
then on the receiver's packets are decoded under the sender's names, so that surveying, recording and matching see one
set of flows, and nothing of them knows of translation.

Packets are told apart by what the device leaves alone, the identification of IPv4 included; where less than half of the
flows find a partner by that, also without, and what pairs more packets is used. Packets with the same payload in the
same flow (repeated datagrams, retransmissions of a host that numbers nothing) cannot be told apart: they are paired in
their order, where the delay is plausible, and counted in a warning.

Cost: one more reading of both captures; 600 bytes per flow of the receiver while it lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from sojourn.capture.decode.ids import Identity, Keying
from sojourn.capture.flows.table import FlowTable
from sojourn.capture.flows.translation import FlowFingerprints, FlowNames, Witnesses
from sojourn.core.arrays import rows_of
from sojourn.core.errors import InputError, UsageError
from sojourn.core.keys import FlowKey
from sojourn.core.units import plural
from sojourn.matching.exact import PacketMatch
from sojourn.segments.result import SegmentResult
from sojourn.segments.survey import CapturePoint, read_identified

Points = tuple[CapturePoint, CapturePoint]
IdentityName = Literal["packet", "payload"]
ENOUGH_PAIRED = 0.5


@dataclass(frozen=True, eq=False)
class Translation:
    """How flows are named at the receiver: by the sender's key, where they differ; and what is worth telling."""

    received_as: Mapping[FlowKey, FlowKey]
    notes: tuple[str, ...]

    def told(self, result: SegmentResult, match: PacketMatch) -> SegmentResult:
        """The result with the flows' names at the receiver, and what is ambiguous among the packets of `match`."""
        alike, packets = match.crossing.shared_ids, len(match.sender_fate)
        warnings = [
            f"{alike:,} of {packets:,} packets looked at have the payload of another packet of their flow: which is "
            "which is ambiguous; they are paired in their order"
        ]
        named = result.with_receivers_names(self.received_as)
        return replace(
            named, notes=[*self.notes, *result.notes], warnings=[*result.warnings, *(warnings if alike else [])]
        )


def name_by_sender(points: Points) -> Translation:
    """Have both points' packets named and told apart within the sender's flows; `points` are changed in place."""
    if any(point.options.decode.keying.mode is not Keying.FIVE_TUPLE for point in points):
        raise UsageError(
            "flows are paired by their addresses and ports", where="--identity payload", action="use --key five-tuple"
        )
    names, tables = _learn(points, Identity.PAYLOAD)
    identity = Identity.PAYLOAD
    if len(names.seen) < ENOUGH_PAIRED * min(map(len, tables)):
        others, other_tables = _learn(points, Identity.PAYLOAD_ALONE)
        if others.votes.sum() > names.votes.sum():
            names, tables, identity = others, other_tables, Identity.PAYLOAD_ALONE
    if not len(names.seen):
        raise InputError(
            "no packet was seen at both points",
            where=f"{points[0].name} and {points[1].name}",
            action="give captures of the same traffic on both sides of the device",
        )
    for point, own in zip(points, (FlowNames.none(), names), strict=True):
        decode = replace(point.options.decode, identity=identity, names=own)
        point.options = replace(point.options, decode=decode)
    return _translation(names, *tables, identity)


def _learn(points: Points, identity: Identity) -> tuple[FlowNames, tuple[FlowTable, FlowTable]]:
    """Which flows are which, by this identity."""
    for point in points:
        point.options = replace(point.options, decode=replace(point.options.decode, identity=identity))

    def read() -> Witnesses:
        prints = FlowFingerprints(points[1].options.decode.max_flows)
        for batch in points[1].batches():
            prints.add(batch)
        witnesses = Witnesses(prints)
        for batch in points[0].batches():
            witnesses.add(batch)
        return witnesses

    witnesses = read_identified(points, read)
    tables = points[0].flows, points[1].flows
    return FlowNames.of(witnesses, tables[0]), tables


def _translation(names: FlowNames, sender: FlowTable, receiver: FlowTable, identity: Identity) -> Translation:
    at_sender, at_receiver = rows_of(sender.ids, names.named), rows_of(receiver.ids, names.seen)
    received_as: dict[FlowKey, FlowKey] = {}
    # Of several names of one flow, the one with most packets in common stays.
    for row in np.argsort(names.votes, kind="stable").tolist():
        key = cast(FlowKey, sender.key(int(at_sender[row])))
        received_as[key] = cast(FlowKey, receiver.key(int(at_receiver[row])))
    changed = sum(key != other for key, other in received_as.items())
    notes = [
        f"{plural(len(received_as), 'flow')} of the receiver named as at the sender, "
        f"{changed:,} of them with other addresses or ports"
    ]
    if identity is Identity.PAYLOAD_ALONE:
        notes.append("the device changes the identification of IPv4: packets are told apart without it")
    if alone := len(receiver) - len(names.seen):
        notes.append(f"{plural(alone, 'flow')} of the receiver shared no packet with the sender, or none of its own")
    if names.ambiguous:
        notes.append(
            f"{plural(names.ambiguous, 'flow')} of the receiver showed packets of several flows of the sender and "
            "took the name of the largest part; the others' packets count as lost"
        )
    return Translation(received_as, tuple(notes))
