"""One flow's packets, asked of the ledger at either end: the question of a query unit, and an agent's reply.

A question is about *ages*, how long before it arrives packets were stamped: so it needs no clock that both ends share.
Guarantee: a reply has all packets of the flow that were stamped in ``first_ns … last_ns``, by the clock that it tells
of, or it is no reply; of more than were asked for it has the newest, and says how many it left out. What the ledger has
forgotten, and stamps on another lead of a clock that was set since, are outside of that stretch. Sizes are limited at
both ends before anything is unpacked. Cost: 16 bytes a packet, before compression.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Any

import cbor2
import numpy as np

from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.errors import WireError
from sojourn.epochs.epoch import KernelClock
from sojourn.segments.fleet.ledgers.naming import COMPRESSION, MOST_REPLY, inflated

VERSION = 1
PREFIX = "packets:"  # what tells such a question from one about lost packets, which is base64
MOST_PACKETS = 200_000
MOST_QUESTION = 4096
MOST_AGE_NS = 86_400_000_000_000
_LATEST_NS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class PacketsQuestion:
    """Which packets of a flow were stamped between ``oldest_ns`` and ``newest_ns`` ago; the newest `most` of them."""

    flow_id: int
    oldest_ns: int
    newest_ns: int
    most: int

    def to_text(self) -> str:
        """As it travels within a question to a node."""
        items = [VERSION, self.flow_id, self.oldest_ns, self.newest_ns, self.most]
        return PREFIX + base64.b64encode(cbor2.dumps(items)).decode()

    @classmethod
    def from_text(cls, text: str) -> PacketsQuestion:
        """The inverse, for content that is not trusted."""
        try:
            if len(text) > MOST_QUESTION:
                raise ValueError("too long")
            items = cbor2.loads(base64.b64decode(text.removeprefix(PREFIX), validate=True))
            version, flow_id, oldest_ns, newest_ns, most = items
            if version != VERSION or not all(type(number) is int for number in items):
                raise ValueError("another form")
            if not (0 <= flow_id < 2**64 and 0 <= newest_ns <= oldest_ns <= MOST_AGE_NS and 1 <= most <= MOST_PACKETS):
                raise ValueError("numbers that are not possible")
        except (ValueError, TypeError, binascii.Error, cbor2.CBORDecodeError, RecursionError) as error:
            raise WireError(f"cannot be read ({error})"[:200], where="question about packets") from None
        return cls(flow_id=flow_id, oldest_ns=oldest_ns, newest_ns=newest_ns, most=most)


@dataclass(frozen=True, eq=False, kw_only=True)
class FlowPackets:
    """Packets of a flow at one point, by their stamps: all of ``first_ns … last_ns``.

    Older ones are ``left_out`` where they were too many. Up to ``missed_ns`` some may have passed unseen.
    """

    packet_id: UInt64Array
    time_ns: Int64Array
    first_ns: int
    last_ns: int
    left_out: int = 0
    missed_ns: int = 0
    clock: KernelClock | None = None

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, eq=False)
class PacketsReply:
    """The packets, or why there are none."""

    packets: FlowPackets | None
    reason: str = ""

    def to_bytes(self) -> bytes:
        items: list[object] = [PREFIX, VERSION, self.reason]
        if (found := self.packets) is not None:
            items += [found.packet_id.astype("<u8").tobytes(), found.time_ns.astype("<i8").tobytes()]
            items += [found.first_ns, found.last_ns, found.left_out, found.missed_ns]
            clock = found.clock
            told = ("synchronised", "error_ns", "offset_ns", "lead_ns", "was_set", "boot")
            items.append(None if clock is None else [getattr(clock, name) for name in told])
        return zlib.compress(cbor2.dumps(items), COMPRESSION)

    @classmethod
    def from_bytes(cls, data: bytes) -> PacketsReply:
        """The inverse, for content that is not trusted."""
        try:
            items = cbor2.loads(inflated(data, MOST_REPLY))
            if not isinstance(items, list) or items[:2] != [PREFIX, VERSION]:
                return cls(None, "its agent is of a version without this question: upgrade it")
            _, _, reason, *rest = items
            if not isinstance(reason, str) or len(rest) not in (0, 7):
                raise ValueError("another form")
            return cls(_packets(*rest)) if rest else cls(None, reason[:200] or "no packets, and no reason")
        except (ValueError, TypeError, zlib.error, cbor2.CBORDecodeError, RecursionError) as error:
            raise WireError(f"cannot be read ({error})"[:200], where="reply about packets") from None


def _packets(packet_id: Any, time_ns: Any, *rest: Any) -> FlowPackets:
    *numbers, told = rest
    if not isinstance(packet_id, bytes) or not isinstance(time_ns, bytes) or len(packet_id) != len(time_ns):
        raise ValueError("columns of different lengths, or none")
    if not all(type(number) is int and -_LATEST_NS <= number <= _LATEST_NS for number in numbers):
        raise ValueError("numbers that are not possible")
    first_ns, last_ns, left_out, missed_ns = numbers
    times = np.frombuffer(time_ns, "<i8").astype(np.int64)
    if len(times) > MOST_PACKETS or ((times < first_ns) | (times > last_ns)).any() or left_out < 0:
        raise ValueError("too many packets, or some of another time")
    return FlowPackets(
        packet_id=np.frombuffer(packet_id, "<u8").astype(np.uint64),
        time_ns=times,
        first_ns=first_ns,
        last_ns=last_ns,
        left_out=left_out,
        missed_ns=missed_ns,
        clock=None if told is None else _clock(*told),
    )


def _clock(synchronised: Any, error_ns: Any, offset_ns: Any, lead_ns: Any, was_set: Any, boot: Any) -> KernelClock:
    numbers = [error_ns, offset_ns, *(number for number in (lead_ns, boot) if number is not None)]
    if not all(type(number) is int and abs(number) < 2**63 for number in numbers):
        raise ValueError("a clock that is not possible")
    return KernelClock(synchronised is True, error_ns, offset_ns, lead_ns, was_set is True, boot)
