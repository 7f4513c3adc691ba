"""What `rtt_tcp` promises, in plain Python: dictionaries, and numbers that never wrap around."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rtt_worlds import Packet, Sample, flow_id

from sojourn.capture.decode.transport import ACK, FIN, RST, SYN
from sojourn.rtt.state import Kind, Note
from sojourn.rtt.tcp import DELAYED_ACK_NS


@dataclass
class Direction:
    """What is known of the data sent in one direction."""

    next_seq: int | None = None
    highest_ack: int | None = None
    ambiguous_until: int = -1
    sack_high: int = -1
    newest_tsval: int | None = None
    newest_echo: int = -1
    syn: tuple[str, int, int] | None = None  # what was sent, when, where it ends
    syn_end: int | None = None
    segments: dict[int, tuple[int, int]] = field(default_factory=dict)
    stamps: dict[int, int] = field(default_factory=dict)
    lowest: int | None = None


class TcpModel:
    """Reads samples from segments whose sequence numbers and time stamps are not wrapped."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.kinds = set(kinds)
        self.directions: dict[object, Direction] = {}
        self.samples: list[Sample] = []

    def take(self, packet: Packet) -> None:
        if packet.flags & RST:
            return
        sent = self.directions.setdefault(packet.flow, Direction())
        answered = self.directions.setdefault(packet.reverse, Direction())
        if packet.flags & SYN:
            self._open(packet, sent, answered)
            return
        if packet.flags & ACK:
            self._echo(packet, answered)
            self._acknowledge(packet, answered)
        self._send(packet, sent)

    def _sample(self, packet: Packet, timed: Direction, start: int, kind: Kind, note: Note = Note.NONE) -> None:
        rtt = packet.time_ns - start
        timed.lowest = rtt if timed.lowest is None else min(timed.lowest, rtt)
        if kind in self.kinds:
            self.samples.append(Sample(packet.time_ns, flow_id(packet), rtt, kind, note))

    def _open(self, packet: Packet, sent: Direction, answered: Direction) -> None:
        end = packet.seq + 1 + packet.length
        if sent.syn_end == end and sent.next_seq == end:
            sent.syn = None
        else:
            lowest = sent.lowest
            sent.__init__()  # type: ignore[misc]
            sent.lowest = lowest
            sent.next_seq = sent.syn_end = end
            sent.syn = ("syn/ack" if packet.flags & ACK else "syn", packet.time_ns, end)
        sent.newest_tsval = packet.tsval
        if packet.flags & ACK and answered.syn and answered.syn[0] == "syn" and answered.syn[2] == packet.ack:
            self._sample(packet, answered, answered.syn[1], Kind.HANDSHAKE)
            answered.syn = None
            answered.highest_ack = packet.ack

    def _echo(self, packet: Packet, answered: Direction) -> None:
        if packet.tsval is None or packet.tsecr <= answered.newest_echo:
            return
        start = answered.stamps.pop(packet.tsecr, None)
        if start is not None:
            answered.newest_echo = packet.tsecr
            self._sample(packet, answered, start, Kind.TIMESTAMPS)

    def _acknowledge(self, packet: Packet, answered: Direction) -> None:
        is_new = answered.highest_ack is None or packet.ack > answered.highest_ack
        if answered.syn and answered.syn[0] == "syn/ack":
            if answered.syn[2] == packet.ack:
                self._sample(packet, answered, answered.syn[1], Kind.HANDSHAKE)
                answered.syn = None
        elif is_new and packet.ack in answered.segments:
            start, length = answered.segments.pop(packet.ack)
            if packet.ack > max(answered.ambiguous_until, answered.sack_high):
                self._sample(packet, answered, start, Kind.SEQ, self._note(packet, answered, start, length))
        if is_new:
            answered.highest_ack = packet.ack
        if packet.sack is not None and packet.sack > packet.ack:
            answered.sack_high = max(answered.sack_high, packet.sack)

    @staticmethod
    def _note(packet: Packet, answered: Direction, start: int, length: int) -> Note:
        if answered.highest_ack is None:
            return Note.NONE
        if packet.ack - answered.highest_ack > length:
            return Note.COVERS_SEVERAL
        waited = packet.time_ns - start - DELAYED_ACK_NS
        if answered.lowest is not None and waited >= answered.lowest and answered.next_seq == packet.ack:
            return Note.DELAYED
        return Note.NONE

    def _send(self, packet: Packet, sent: Direction) -> None:
        occupied = packet.length + bool(packet.flags & FIN)
        following = sent.next_seq
        is_keep_alive = (
            not packet.flags & FIN
            and packet.length <= 1
            and following is not None
            and following == sent.highest_ack
            and packet.seq == following - 1
        )
        is_timed = occupied > 0 and not is_keep_alive
        if is_timed:
            sent.syn = None
            end = packet.seq + occupied
            if following is None or packet.seq >= following:
                sent.segments[end] = (packet.time_ns, occupied)
                sent.next_seq = end
            else:
                sent.next_seq = max(following, end)
                sent.ambiguous_until = sent.next_seq
        if packet.tsval is None:
            return
        if sent.newest_tsval is None:
            sent.newest_tsval = packet.tsval
        elif packet.tsval > sent.newest_tsval:
            sent.newest_tsval = packet.tsval
            if is_timed:
                sent.stamps[packet.tsval] = packet.time_ns
