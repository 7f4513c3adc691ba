"""What `rtt.quic` promises, in plain Python: one connection, its evidence and its edges."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sojourn.rtt.state import Kind


@dataclass
class Direction:
    value: int | None = None
    edge: int | None = None
    score: int = 0
    edges: int = 0
    stays: int = 0
    smoothed: int = 0
    silence: int = 0
    last: int | None = None
    paused: bool = False


class SpinModel:
    """What `rtt.quic` promises, for the packets of one connection."""

    trusted = 7074  # ln 1000 in units of 1/1024

    def __init__(self) -> None:
        self.begin()
        self.samples: list[tuple[int, int, Kind]] = []

    def begin(self) -> None:
        """A client's Initial: nothing is known."""
        self.of = [Direction(), Direction()]

    def weigh(self, mine: Direction, likelihoods: float) -> None:
        self.add(mine, int(math.log(likelihoods) * 1024))

    def add(self, mine: Direction, evidence: int) -> None:
        mine.score = min(max(mine.score + evidence, -self.trusted), 2 * self.trusted)

    def pass_by(self, now: int, *, is_server: bool) -> Direction:
        """A datagram of either kind breaks the silence."""
        mine = self.of[is_server]
        latest = max((d.last for d in self.of if d.last is not None), default=now)
        mine.silence = max(mine.silence, now - latest)
        mine.last = now
        return mine

    def take(self, now: int, value: int, *, is_server: bool) -> None:
        """A datagram with a short header."""
        mine, other = self.pass_by(now, is_server=is_server), self.of[not is_server]
        both = other.value is not None
        if mine.value is None:
            mine.value = value
            if both:
                other.score = other.edges = other.stays = other.smoothed = 0
            return
        in_turn = not both or (mine.value == other.value) != is_server
        start = other.edge if both else mine.edge
        is_edge = value != mine.value
        soon = start is not None and now - start < mine.smoothed // (8 if both else 4)
        soon = soon and not (both and other.smoothed >= mine.smoothed)
        if is_edge and (soon or not in_turn):
            self.add(mine, round(math.log(2 * 0.02) * 1024))
            return
        if not both:
            self.alone(mine, now, is_edge)
        elif in_turn:
            seen = mine.edges if is_edge else mine.stays
            self.weigh(mine, 2 * (seen + 0.5) / (mine.edges + mine.stays + 1))
            mine.edges, mine.stays = mine.edges + is_edge, mine.stays + (not is_edge)
            if mine.edges + mine.stays > 64:
                mine.edges, mine.stays = mine.edges // 2, mine.stays // 2
        else:
            self.add(mine, round(math.log(2 * 0.98) * 1024))
        if is_edge:
            self.edge(mine, other, now, start, both=both)

    def alone(self, mine: Direction, now: int, is_edge: bool) -> None:
        if not is_edge:
            if mine.stays < 8:
                mine.stays += 1
                self.add(mine, round(math.log(5 / 4) * 1024))
            return
        mine.stays = 0
        self.add(mine, round(math.log(1 / 4) * 1024))
        if mine.smoothed and mine.edge is not None:
            regular = 0.5 <= (now - mine.edge) / mine.smoothed <= 2
            self.add(mine, round(math.log(0.95 / 0.47 if regular else 0.05 / 0.53) * 1024))

    def edge(self, mine: Direction, other: Direction, now: int, start: int | None, *, both: bool) -> None:
        trusted = mine.score >= self.trusted and (not both or other.score >= self.trusted)
        if start is not None and both and 2 * other.silence > now - start:
            mine.paused = other.paused = True
        elif start is not None:
            mine.smoothed = mine.smoothed + (now - start - mine.smoothed) // 4 if mine.smoothed else now - start
            if trusted and both:
                self.samples.append((now, now - start, Kind.QUIC))
        if trusted and mine.edge is not None and not mine.paused:
            self.samples.append((now, now - mine.edge, Kind.QUIC_WHOLE))
        assert mine.value is not None
        mine.value, mine.edge, mine.silence, mine.paused = 1 - mine.value, now, 0, False
