"""Packet filters in libpcap's language, the same for capture files and for live interfaces.

`PacketFilter` is compiled once per link type by libpcap (the ``pcapy-ng`` wheel carries it; nothing of
it captures packets here) and then run by `filter_program` over the frames' bytes.

Guarantee: a frame is accepted exactly when ``tcpdump EXPRESSION`` accepts it in a file, the `vlan`
and `mpls` keywords' shifting offsets included.
Cost: compiling takes well under a millisecond; running is `filter_program`'s.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from sojourn.capture.decode.frames import Frames
from sojourn.capture.filters.program import REJECT_ALL, FilterProgram
from sojourn.core.arrays import BoolArray
from sojourn.core.errors import InputError, SojournError, UsageError

__all__ = ["LINK_ETHERNET", "LINK_RAW_IP", "PacketFilter", "select_rows"]

LINK_ETHERNET, LINK_RAW_IP = 1, 101
MAX_EXPRESSION = 65536
ACCEPTED_BYTES = 262144

# libpcap's compiler takes its own numbers (DLT_), which differ from the files' for some link types.
_COMPILER_LINK = {LINK_RAW_IP: 12, 11: 11, 100: 11, 106: 19, 50: 50}
_NO_NETMASK = 0xFFFFFFFF
_REJECTS_ALL = "expression rejects all packets"


class PacketFilter:
    """One expression, ready for any link type.

    >>> PacketFilter("udp port 53 or (vlan 7 and ip6)").expression
    'udp port 53 or (vlan 7 and ip6)'
    >>> PacketFilter("port and")
    Traceback (most recent call last):
    sojourn.core.errors.UsageError: filter 'port and': can't parse filter expression: syntax error; ...
    """

    def __init__(self, expression: str) -> None:
        """Check the expression by compiling it for Ethernet, where all of the language works."""
        self.expression = expression.strip()
        self._programs: dict[int, FilterProgram | str] = {}
        program = _compile(self.expression, LINK_ETHERNET, ACCEPTED_BYTES)
        if program.asks_the_kernel:
            raise UsageError(
                "direction and interface are known to the kernel only, not to a frame's bytes",
                where=_place(self.expression),
                action="leave inbound, outbound and ifindex out; a live capture takes a direction",
            )
        self._programs[LINK_ETHERNET] = program

    def __repr__(self) -> str:
        return f"PacketFilter({self.expression!r})"

    def program(self, link: int, *, snap_length: int) -> FilterProgram:
        """The program that accepts at most `snap_length` bytes of a frame of that link type."""
        return _compile(self.expression, link, snap_length)

    def apply(self, frames: Frames) -> tuple[Frames, dict[str, int]]:
        """The frames that match, and how many did not, by reason."""
        accepted = np.zeros(len(frames), np.bool_)
        ignored: dict[str, int] = {}
        for link in np.unique(frames.link).tolist():
            rows: BoolArray = frames.link == link
            program = self._cached_program(link)
            if isinstance(program, str):
                ignored[f"cannot be filtered: {program}"] = int(np.count_nonzero(rows))
                continue
            matching = program.accepted(frames, rows, link=link)
            if rejected := int(np.count_nonzero(rows) - np.count_nonzero(matching)):
                ignored["filtered out"] = ignored.get("filtered out", 0) + rejected
            accepted |= matching
        return select_rows(frames, accepted), ignored

    def _cached_program(self, link: int) -> FilterProgram | str:
        """The program for a link type, or why libpcap has none for it."""
        if link not in self._programs:
            try:
                self._programs[link] = _compile(self.expression, link, ACCEPTED_BYTES)
            except UsageError as error:
                nothing = error.what == _REJECTS_ALL
                self._programs[link] = REJECT_ALL if nothing else error.what
        return self._programs[link]


def select_rows(frames: Frames, rows: BoolArray) -> Frames:
    """Those frames only; their bytes stay where they are."""
    if rows.all():
        return frames
    columns = {f.name: getattr(frames, f.name)[rows] for f in fields(frames) if f.name != "data"}
    return Frames(data=frames.data, **columns)


def _place(expression: str) -> str:
    shown = expression if len(expression) <= 60 else f"{expression[:57]}..."
    return f"filter {shown!r}"


def _compile(expression: str, link: int, snap_length: int) -> FilterProgram:
    try:
        import pcapy
    except ImportError:
        raise SojournError(
            "filters need libpcap's compiler, which is not installed", action="pip install pcapy-ng"
        ) from None
    if len(expression) > MAX_EXPRESSION or "\0" in expression:
        raise UsageError(
            f"not a text of up to {MAX_EXPRESSION} characters",
            where=_place(expression),
            action="shorten it, for example with net A/LEN instead of many hosts",
        )
    try:
        compiled = pcapy.compile(_COMPILER_LINK.get(link, link), snap_length, expression, 1, _NO_NETMASK)
    except (pcapy.PcapError, ValueError) as error:
        raise UsageError(str(error), where=_place(expression), action="write it in tcpdump's filter syntax") from None
    try:
        return FilterProgram.from_instructions(compiled.get_bpf())
    except InputError as error:
        raise UsageError(
            f"its program is refused: {error.what}",
            where=_place(expression),
            action="write it without protochain, or shorter",
        ) from None
