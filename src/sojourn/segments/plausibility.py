"""Can two captures answer the question at all? Judged from their survey, before a number is printed.

Refused, by an `InputError` that names what was seen and what to do, is what has no answer:

- **one capture twice**: all packets seen at both points (`FEWEST_PAIRS` or more) have the same time stamp at both;
- **no common time**: the captures' times do not overlap, and too few packets were seen at both to prove that only the
  clocks differ. Where the packets prove it, the offset is a clock's, and a warning names both ranges;
- **identities that disagree**: less than `REFUSED_SHARE` of the packets that should have matched (`matching.crossing`)
  did: captured parts of different length, offloading at one point, or packets that are rewritten in between;
- **nothing travels from the sender to the receiver**: everything that both points saw travels the other way.

Doubtful is what has an answer that may not be the one asked for: most packets travel the other way, fewer than
`DOUBTED_SHARE` of the packets matched, delays longer than any path. These are warnings.

The shares are far from what sound captures show: where both points see the same packets nearly all of them match,
whatever was lost; different packets match by accident only where their headers repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from sojourn.core.errors import InputError
from sojourn.core.estimates import Answer, Estimate
from sojourn.core.units import format_duration, plural
from sojourn.estimation.differences import CellDifference
from sojourn.matching.crossing import Crossing
from sojourn.segments.ranges import IN_RANGE_NS

FEWEST_PAIRS = 100
REFUSED_SHARE = 0.05
# Lost packets that are the same as others that arrived: so many, and such a share of all losses, may be copies.
FEWEST_COPIES, COPIES_SHARE = 20, 0.05
DOUBTED_SHARE = 0.5
LEAST_COMMON_SHARE = 0.01
COARSE_NS = 1_000_000
FEWEST_CELLS = 20
LARGEST_ON_A_LINK = 9_216  # jumbo frames; what is larger was put together by offloading


@dataclass(frozen=True, slots=True)
class Capture:
    """One side of the question: its name, times on its own clock, and what it holds of packets.

    ``only_here`` packets, of flows that both points saw, were missed by the other.
    """

    name: str
    first_ns: int
    last_ns: int
    largest_bytes: int = 0
    cut_packets: int = 0
    only_here: int = 0

    @property
    def range(self) -> str:
        first, last = (datetime.fromtimestamp(ns / 1e9, UTC) for ns in (self.first_ns, self.last_ns))
        end = f"{last:%H:%M:%S.%f}"[:-3] if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M:%S.%f}"[:-3]
        return f"{self.name} from {first:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f" to {end} UTC"


def judge_captures(
    sender: Capture, receiver: Capture, crossing: Crossing, *, other_way: int, base_ns: int = 0
) -> list[str]:
    """What is doubtful, in words; raises an `InputError` where there is no answer. `other_way` are packets."""
    _refuse_copies(sender, receiver, crossing)
    together = sender.first_ns <= receiver.last_ns and receiver.first_ns <= sender.last_ns
    if not together:
        _refuse_apart(sender, receiver, crossing)
    _refuse_strangers(sender, receiver, crossing)
    if not crossing.forward and crossing.pairs:
        raise InputError(
            f"nothing travels from {sender.name} to {receiver.name}: {_all(crossing.pairs)} the other way",
            action="exchange the two, or measure that way with --reverse",
        )
    early = crossing.earlier == crossing.forward == crossing.pairs
    if early and receiver.only_here > sender.only_here:
        raise InputError(
            f"nothing travels from {sender.name} to {receiver.name}: all packets seen at both were at the second "
            f"first, by their clocks, and {plural(receiver.only_here, 'packet')} of the second never reached the first",
            action="exchange the two, or measure that way with --reverse",
        )
    warnings = []
    if not together:
        warnings.append(
            f"the captures do not overlap in time by their own clocks ({sender.range}, {receiver.range}), but "
            f"{plural(crossing.pairs, 'packet was', 'packets were')} seen at both: {_wrong_clock(crossing.pairs)}"
        )
    if early:
        warnings.append(
            f"every packet was at {receiver.name} before it was at {sender.name}, by their clocks: the captures are "
            "exchanged (then give --reverse), or the receiver's clock is behind"
        )
    if crossing.backward > crossing.forward:
        warnings.append(
            f"most packets travel the other way: {other_way:,} from {receiver.name} to {sender.name}; to measure "
            "these, exchange the two or give --reverse"
        )
    if crossing.one_delay and crossing.pairs >= FEWEST_PAIRS:
        warnings.append(
            f"all {crossing.pairs:,} packets seen at both have exactly the same delay: is one capture a copy of the "
            "other with its times shifted?"
        )
    unpaired = min(crossing.unpaired_copies, sender.only_here)
    if unpaired >= FEWEST_COPIES and unpaired >= COPIES_SHARE * sender.only_here:
        warnings.append(
            f"{unpaired:,} packets that count as lost are the same, byte for byte, as others that "
            f"arrived: if {sender.name} shows packets twice (several interfaces, a mirror port), so many less are "
            "lost; capture one interface, or take copies out with `editcap -d`"
        )
    if crossing.ambiguous >= FEWEST_COPIES and crossing.ambiguous >= COPIES_SHARE * crossing.sent:
        warnings.append(_ambiguous(crossing))
    if abs(base_ns) > IN_RANGE_NS:
        warnings.append(_long_delay(base_ns))
    if crossing.comparable >= FEWEST_PAIRS and crossing.pairs < DOUBTED_SHARE * crossing.comparable:
        warnings.append(f"{_mismatch(crossing)}; the others count as lost. {_cause(sender, receiver)}")
    return warnings


def _all(packets: int) -> str:
    return "the one packet seen at both travels" if packets == 1 else f"all {packets:,} packets seen at both travel"


def _wrong_clock(packets: int) -> str:
    """What packets at two times prove: a few may have been sent again, byte for byte."""
    return "a clock is wrong" if packets >= FEWEST_PAIRS else "a clock is wrong, or what is later was sent again"


def _refuse_copies(sender: Capture, receiver: Capture, crossing: Crossing) -> None:
    """One capture twice. Coarse time stamps may hide every delay, and then it is an answer that all are short."""
    if FEWEST_PAIRS <= crossing.pairs == crossing.simultaneous and crossing.resolution_ns < COARSE_NS:
        raise InputError(
            f"all {crossing.pairs:,} packets seen at both points have the same time stamp at both: this is one capture "
            "twice, or parts of one",
            where=f"{sender.name} and {receiver.name}",
            action="give the captures of two points",
        )


def _refuse_apart(sender: Capture, receiver: Capture, crossing: Crossing) -> None:
    """No common time, unless enough packets show that a clock is wrong."""
    needed = max(1.0, REFUSED_SHARE * crossing.comparable, LEAST_COMMON_SHARE * crossing.in_common)
    if crossing.pairs < needed:
        seen = f"only {plural(crossing.pairs, 'packet was', 'packets were')}" if crossing.pairs else "no packet was"
        raise InputError(
            f"the captures do not overlap in time and {seen} seen at both: {sender.range}, {receiver.range}",
            action="give captures of the same time; a wrong clock alone would leave the packets to match",
        )


def _refuse_strangers(sender: Capture, receiver: Capture, crossing: Crossing) -> None:
    where = f"{sender.name} and {receiver.name}"
    if crossing.comparable >= FEWEST_PAIRS and crossing.pairs < REFUSED_SHARE * crossing.comparable:
        raise InputError(_mismatch(crossing), where=where, action=_cause(sender, receiver))
    if not crossing.pairs and crossing.in_common:
        raise InputError("no packet was seen at both points", where=where, action=_cause(sender, receiver))
    if not crossing.pairs:
        raise InputError(
            "no flow was seen at both points",
            where=where,
            action="give captures of the same traffic; where addresses are translated in between (NAT), "
            "measure captures with --identity payload",
        )


def _mismatch(crossing: Crossing) -> str:
    return (
        f"only {crossing.pairs:,} of the {crossing.comparable:,} or more packets that passed both points have the same "
        "identity at both"
    )


def _cause(sender: Capture, receiver: Capture) -> str:
    """What the captures show that keeps identities from agreeing, and what to do about it."""
    for one in (sender, receiver):
        if one.cut_packets:
            return (
                f"{plural(one.cut_packets, 'packet')} of {one.name} cut too short to be told apart: capture both with "
                "the same snap length, 96 or more"
            )
    for one in (sender, receiver):
        if one.largest_bytes > LARGEST_ON_A_LINK:
            return (
                f"{one.name} has packets of {one.largest_bytes:,} bytes, put together by offloading: turn it off there "
                "(ethtool -K IFACE gro off gso off tso off lro off) and capture again"
            )
    return (
        "is something in between that rewrites packets (a proxy, NAT of ports or sequence numbers, a tunnel: see "
        "--inner)? Capture on the same side of it"
    )


def _ambiguous(crossing: Crossing) -> str:
    """A word where much is paired by its order alone, and a loss shifts the pairs after it."""
    return (
        f"{crossing.ambiguous / crossing.sent:.0%} of the packets sent are the same, byte for byte, as another that "
        "may have been on its way at the same time: they are paired in their order, and where one was lost nothing "
        "tells which, so that their delays and losses are uncertain; if both captures show packets twice (several "
        "interfaces, a mirror port), each counts twice: capture one interface, or take copies out with `editcap -d`"
    )


def _long_delay(base_ns: int) -> str:
    """A word where the usual delay is longer than any path takes: surely the clocks differ."""
    return (
        f"delays are about {format_duration(base_ns)}, more than any path takes: the clocks differ by about that much, "
        f"and all delays include it; give --clock offset={base_ns / 1e9:.0f}s, or more exactly where it is known"
    )


def judge_epochs(sender: Capture, receiver: Capture, cells: CellDifference, *, base_ns: int | None) -> list[str]:
    """The same for what two points recorded: `cells` of the segment's LDAs, and the delays' base that they tell."""
    _refuse_same_epochs(sender, receiver, cells)
    together = sender.first_ns <= receiver.last_ns and receiver.first_ns <= sender.last_ns
    if not together and base_ns is None:
        raise InputError(
            f"the recordings do not overlap in time, and nothing in them proves that only the clocks differ: "
            f"{sender.range}, {receiver.range}",
            action="give epochs of the same time; if a clock was wrong, tell by how much with --clock offset=TIME",
        )
    _refuse_other_identities(cells)
    warnings = []
    if not together:
        warnings.append(
            f"the recordings do not overlap in time by their own clocks ({sender.range}, {receiver.range}), but hold "
            "the same packets: a clock is wrong"
        )
    if base_ns:
        warnings.append(_long_delay(base_ns))
    return warnings


def _refuse_other_identities(cells: CellDifference) -> None:
    """The receiver's packets are some of the sender's, so that equal counts are equal packets, unless the same packet
    has another identity there."""
    alike = int(np.count_nonzero((cells.sent == cells.received) & (cells.sent > 0)))
    if alike >= FEWEST_CELLS and int(cells.usable.sum()) < REFUSED_SHARE * alike:
        raise InputError(
            "the two points' cells hold different packets where they hold equally many: identities differ",
            action="record both from captures of the same snap length, with the same --identity-bytes and --inner",
        )


def _refuse_same_epochs(sender: Capture, receiver: Capture, cells: CellDifference) -> None:
    frames = [(point.first_ns, point.last_ns) for point in (sender, receiver)]
    same = frames[0] == frames[1] and cells.total_sent == cells.total_received >= FEWEST_PAIRS
    if same and bool(cells.usable[cells.sent > 0].all()) and not cells.delay_sum.any():
        raise InputError(
            f"both points recorded the same {cells.total_sent:,} packets at the same times: this is one capture twice",
            where=f"{sender.name} and {receiver.name}",
            action="give the epochs of two points",
        )


def refuse_negative(mean: Answer, offset_ns: int) -> None:
    """Refuse delays that are all negative: nothing that is known travels from the sender to the receiver."""
    if isinstance(mean, Estimate) and mean.high < 0:
        behind = format_duration(-mean.value)
        raise InputError(
            f"packets arrive {behind} before they are sent, on average: the receiver's clock is behind, or the two "
            "are exchanged",
            where="--clock" if offset_ns else "",
            action="exchange the two, or give --clock offset=TIME (negative where the receiver is behind)",
        )


def doubt_negative(mean: Answer) -> list[str]:
    """A warning where packets arrive before they are sent, on average, although some flows have an answer."""
    if not isinstance(mean, Estimate) or mean.high >= 0:
        return []
    behind = format_duration(-mean.value)
    return [
        f"packets arrive {behind} before they are sent, on average: most travel the other way (exchange the two), or "
        "the receiver's clock is behind (give --clock offset=TIME, negative then)"
    ]
