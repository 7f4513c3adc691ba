"""QUIC connections with known truth: hosts that spin, grease or keep the spin bit, and a path that loses and reorders.

Every packet is simulated from host to host past the observer. A host learns of a packet when it arrives, and acts on
those whose number is the highest so far, as RFC 9000 §17.4 says.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from enum import Enum

from rtt_worlds import MS, Packet

CLIENT, SERVER = ("10.0.0.1", 50_000), ("10.0.0.2", 443)
UDP = 17


class Bit(Enum):
    """What a host does with its spin bit."""

    SPIN = "spin"
    RANDOM = "random"
    ZERO = "zero"
    ONE = "one"


@dataclass(frozen=True)
class SpinWorld:
    """A connection past an observer: times in ns, one way each; a host sends by its own clock and answers at once.

    `late` is the share of packets that `late_ns` more delays on either side, so that others overtake them.
    """

    packets: int = 2000
    to_client_ns: int = 5 * MS
    to_server_ns: int = 15 * MS
    every_ns: tuple[int, int] = (2 * MS, 2 * MS)
    jitter_ns: int = MS // 10
    lost: float = 0.0
    late: float = 0.0
    late_ns: int = 0
    bits: tuple[Bit, Bit] = (Bit.SPIN, Bit.SPIN)
    ping_pong: bool = False
    seed: int = 0

    @property
    def component_ns(self) -> dict[tuple[str, int], int]:
        """The least time from the observer to a host and back."""
        return {CLIENT: 2 * self.to_client_ns, SERVER: 2 * self.to_server_ns}


class _Host:
    def __init__(self, bit: Bit, *, is_client: bool) -> None:
        self.bit, self.is_client = bit, is_client
        self.spin, self.highest, self.sent = 0, -1, 0

    def receive(self, number: int, spin: int) -> None:
        if number > self.highest:
            self.highest, self.spin = number, spin ^ self.is_client

    def value(self, chance: random.Random) -> int:
        fixed = {Bit.ZERO: 0, Bit.ONE: 1, Bit.SPIN: self.spin}
        return fixed[self.bit] if self.bit in fixed else chance.getrandbits(1)


def short_header(value: int, chance: random.Random, size: int = 30) -> bytes:
    """A packet with a short header; what header protection covers is random."""
    return bytes([0x40 | value << 5 | chance.getrandbits(5)]) + chance.randbytes(size - 1)


def packets_of(world: SpinWorld, client: tuple[str, int] = CLIENT) -> list[Packet]:
    """What the observer sees, in the order in which it does."""
    chance = random.Random(world.seed)
    hosts = (_Host(world.bits[0], is_client=True), _Host(world.bits[1], is_client=False))
    ways = (world.to_client_ns, world.to_server_ns)
    seen: list[tuple[int, int, bytes]] = []
    # What happens: time, order, host, and the packet that arrives there (None: its own clock).
    events: list[tuple[int, int, int, tuple[int, int] | None]] = [(0, 0, 0, None)]
    if not world.ping_pong:
        events.append((world.every_ns[1] // 2, 1, 1, None))
    order = 2

    def delay(base: int) -> int:
        late = world.late_ns if chance.random() < world.late else 0
        return base + int(chance.expovariate(1.0) * world.jitter_ns) + late

    while events and len(seen) < world.packets:
        now, _, who, arrived = heapq.heappop(events)
        host = hosts[who]
        if arrived is not None:
            host.receive(*arrived)
            if not world.ping_pong:
                continue
        number, value = host.sent, host.value(chance)
        host.sent += 1
        passes = now + delay(ways[who])
        arrives = passes + delay(ways[1 - who])
        if not world.ping_pong:
            heapq.heappush(events, (now + int(world.every_ns[who] * chance.uniform(0.5, 1.5)), order, who, None))
        if chance.random() >= world.lost:
            seen.append((passes, who, short_header(value, chance)))
            heapq.heappush(events, (arrives, order + 1, 1 - who, (number, value)))
        order += 2
    ends = ((client, SERVER), (SERVER, client))
    return [Packet(t, *ends[who], protocol=UDP, flags=0, payload=payload) for t, who, payload in sorted(seen)]
