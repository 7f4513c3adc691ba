"""Naming lost packets across a wire: what a query unit asks the agent that keeps the sender's ledger, and its reply.

The question has the difference of both ends' power sums and the stretch of time that the sender's are of; the reply the
packets that make the difference, or why there are none. Guarantee: a reply is believed only as far as the packets that
it names solve the difference (`checked`): a wrong one, whoever wrote it, is refused. Sizes are limited at both ends
before anything is unpacked (`MOST_SUMS`, `MOST_NAMED`). Cost: 4 bytes for each sum, 24 for each packet, before
compression; checking takes what solving takes, O(t²) for a group.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass, replace
from typing import Any

import cbor2
import numpy as np

from sojourn.core.errors import InputError, WireError
from sojourn.estimation.ledgers.answer import REACH_NS
from sojourn.estimation.ledgers.decoding import Named
from sojourn.estimation.ledgers.polynomials import UNSOLVED, roots, solve
from sojourn.sketches.ledgers.ledger import LedgerPackets
from sojourn.sketches.ledgers.power_sums import PRIME, PowerSums, names_and_groups
from sojourn.sketches.ledgers.receipt import MOST_GROUPS

VERSION = 1
COMPRESSION = 1
MOST_SUMS, MOST_NAMED = 1 << 18, 1 << 18
MOST_QUESTION, MOST_REPLY = 4 << 20, 16 << 20  # bytes, unpacked
NO_LEDGER, FORGOTTEN, TOO_MANY = "no ledger is kept", "the ledger has forgotten packets", "too many packets were lost"
NO_PACKETS = LedgerPackets(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))
_COLUMNS = ("<u8", "<u8", "<i8")


@dataclass(frozen=True, eq=False)
class NamingQuestion:
    """Which packets make this difference, among those that were sent in ``first_ns … last_ns``?"""

    first_ns: int
    last_ns: int
    salt: int
    difference: PowerSums

    @property
    def is_askable(self) -> bool:
        """Whether it is within the limits."""
        return self.difference.sums.size <= MOST_SUMS and int(np.abs(self.difference.counts).sum()) <= MOST_NAMED

    def to_text(self) -> str:
        """As it travels within a question to a node."""
        counts, sums = self.difference.counts.astype("<i4"), self.difference.sums.astype("<u4")
        items = [VERSION, self.first_ns, self.last_ns, self.salt, sums.shape[1], counts.tobytes(), sums.tobytes()]
        return base64.b64encode(zlib.compress(cbor2.dumps(items), COMPRESSION)).decode()

    @classmethod
    def from_text(cls, text: str) -> NamingQuestion:
        """The inverse, for content that is not trusted."""
        try:
            items = cbor2.loads(inflated(base64.b64decode(text, validate=True), MOST_QUESTION))
            version, first_ns, last_ns, salt, threshold, counts, sums = items
            if version != VERSION or not 1 <= threshold <= MOST_SUMS or not 0 <= salt < 2**64:
                raise ValueError("another form")
            difference = PowerSums(_column(counts, "<i4"), _column(sums, "<u4").reshape(-1, threshold))
            groups = difference.groups
            if len(difference.sums) != groups or not 1 <= groups <= MOST_GROUPS or groups & (groups - 1):
                raise ValueError("groups that are not possible")
            found = cls(_time(first_ns), _time(last_ns), salt, difference)
        except (ValueError, TypeError, zlib.error, binascii.Error, cbor2.CBORDecodeError, RecursionError) as error:
            raise WireError(f"cannot be read ({error})"[:200], where="question about lost packets") from None
        if not found.is_askable or (difference.sums >= PRIME).any():
            raise WireError("is beyond the limits", where="question about lost packets")
        return found


@dataclass(frozen=True, eq=False)
class NamingReply:
    """The packets that make the difference; none, and the reason, where the ledger cannot tell."""

    named: Named | None
    reason: str = ""

    def to_bytes(self) -> bytes:
        items: list[object] = [VERSION, self.reason]
        if (named := self.named) is not None:
            items += [packed(named.missing), packed(named.extra), named.doubtful.astype("<u8").tobytes()]
            items += [named.groups, named.unsolved, named.foreign]
        return zlib.compress(cbor2.dumps(items), COMPRESSION)

    @classmethod
    def from_bytes(cls, data: bytes) -> NamingReply:
        """The inverse, for content that is not trusted."""
        try:
            items = cbor2.loads(inflated(data, MOST_REPLY))
            version, reason, *rest = items
            if version != VERSION or not isinstance(reason, str) or len(rest) not in (0, 6):
                raise ValueError("another form")
            if not rest:
                return cls(None, reason[:200] or "no packets, and no reason")
            missing, extra, doubtful, *counts = rest
            if not all(isinstance(count, int) and 0 <= count < 2**31 for count in counts):
                raise ValueError("numbers that are not possible")
            groups, unsolved, foreign = counts
            packets = unpacked(missing), unpacked(extra)
            return cls(Named(*packets, _column(doubtful, "<u8"), groups, unsolved, foreign))
        except (ValueError, TypeError, zlib.error, cbor2.CBORDecodeError, RecursionError) as error:
            raise WireError(f"cannot be read ({error})"[:200], where="reply about lost packets") from None


def checked(question: NamingQuestion, named: Named) -> Named:
    """The packets, if they are those that make the difference; an `InputError` else.

    The sums of every group say by themselves how many packets it misses, and which names are none of theirs: all that
    are named have to be solutions, and none may be missing. Of groups that are said to be unsolved nothing is believed.
    """
    difference = question.difference
    shape = difference.groups, difference.threshold + 1
    polynomials = np.empty(shape, np.uint64), np.empty(shape, np.uint64)
    degrees = solve(difference.counts, difference.sums, *polynomials)
    groups, counts = [], []
    is_wrong = degrees[:, 0] == UNSOLVED
    for which, packets in enumerate((named.missing, named.extra)):
        away_ns = np.maximum(question.first_ns - packets.time_ns, packets.time_ns - question.last_ns)
        if (away_ns > REACH_NS).any():
            raise InputError("packets of another time are named", where="reply about lost packets")
        names, group = names_and_groups(packets.packet_id, np.uint64(question.salt), difference.groups)
        if len(np.unique((group << 32) | names.astype(np.int64))) < len(names):
            raise InputError("a packet is named twice", where="reply about lost packets")
        order = np.argsort(group, kind="stable")
        begins = np.searchsorted(group[order], np.arange(difference.groups + 1))
        is_root = roots(names[order], begins, polynomials[which], degrees[:, which]).astype(bool)
        is_wrong[group[order][~is_root]] = True
        groups.append(group)
        counts.append(np.diff(begins))
    is_wrong |= (counts[0] != degrees[:, 0]) | (counts[1] > degrees[:, 1])
    if np.count_nonzero(is_wrong) > named.unsolved or named.groups != difference.groups:
        what = f"the packets that are named do not make the difference in {np.count_nonzero(is_wrong)} groups"
        raise InputError(what, where="reply about lost packets")
    if not is_wrong.any():
        return replace(named, unsolved=0)
    missing, extra = (
        LedgerPackets(*(column[~is_wrong[group]] for column in (its.flow_id, its.packet_id, its.time_ns)))
        for its, group in zip((named.missing, named.extra), groups, strict=True)
    )
    return replace(named, missing=missing, extra=extra)


def packed(packets: LedgerPackets) -> list[bytes]:
    """Packets as items of CBOR."""
    columns = packets.flow_id, packets.packet_id, packets.time_ns
    return [column.astype(kind).tobytes() for column, kind in zip(columns, _COLUMNS, strict=True)]


def unpacked(columns: Any) -> LedgerPackets:
    """The inverse, for content that is not trusted; a `ValueError` or `TypeError` where it is none."""
    flow, packet, time_ns = (_column(data, kind) for data, kind in zip(columns, _COLUMNS, strict=True))
    if not len(flow) == len(packet) == len(time_ns) <= MOST_NAMED:
        raise ValueError("columns of different lengths, or too many packets")
    if ((time_ns < 0) | (time_ns > 2**62)).any():
        raise ValueError("times that are not possible")
    return LedgerPackets(flow, packet, time_ns)


def _column(data: Any, kind: str) -> Any:
    if not isinstance(data, bytes):
        raise TypeError("a column is no bytes")
    column = np.frombuffer(data, kind)
    return column.astype(np.uint64 if kind == "<u8" else np.int64)


def _time(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= 2**62:
        raise ValueError("a time that is not possible")
    return value


def inflated(data: bytes, most: int) -> bytes:
    """Decompressed bytes, no more than a limit."""
    inflating = zlib.decompressobj()
    found = inflating.decompress(data, most)
    if not inflating.eof:
        raise ValueError(f"it is cut, or larger than {most} bytes")
    return found
