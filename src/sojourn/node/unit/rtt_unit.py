"""Round-trip times on constrained nodes: bucket arrays of time stamps; runs on MicroPython beside `unit.py`.

Imports nothing: it is handed a function that makes `NodeUnit` s. Two forms:

- `RttUnit`: packets sent and packets acknowledged in two arrays with a count each. A lost packet spoils one bucket of
  one epoch, a packet on its way at an epoch's edge none. Memory: two epochs × two arrays.
- `PublishedRttUnit`: time stamps subtracted and added in one array, packets sent counted in another.

Time: one hash to choose j, one for the bucket, two updates. Shahzad and Ganji, "IoTm", §IV-B.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.node.unit.unit import Instance, NodeUnit

NUMBERS = (1 << 32) - 1


class RttUnit:
    """A flow's packets, sent and acknowledged, by epochs; ``new_unit`` makes arrays that count, wrap and spread by
    sequence.

    A packet's number, hashed, chooses its bucket, the same for its acknowledgement. A bucket whose two counts agree
    holds the sum of its round trips. Acknowledgements of numbers before a flow's first of this epoch belong to the
    epoch before, which stays open for one more: so a packet is in the epoch in which it was sent, with both its times.
    A flow's numbers grow, modulo 2³².
    """

    def __init__(self, new_unit: "Callable[[], NodeUnit]", *, unit_ns: int = 1000) -> None:
        self.unit_ns = unit_ns
        self.now = (new_unit(), new_unit())
        self.before = (new_unit(), new_unit())
        self.epoch = 0

    def sent(self, flow: "Instance", number: int, time_ns: int) -> bool:
        """Record a packet that left (not one sent again); false, and nothing changed, if the array is full."""
        unit = self.now[0]
        if not unit.insert(flow, time_ns // self.unit_ns, time_ns, unit.choice(number)):
            return False
        if flow.round != self.epoch:
            flow.round, flow.first_number = self.epoch, number
        return True

    def acknowledged(self, flow: "Instance", number: int, time_ns: int) -> bool:
        """Record an acknowledgement in the epoch of its packet; false if that is closed or full."""
        in_this = flow.round == self.epoch and (number - flow.first_number) & NUMBERS <= NUMBERS >> 1
        if not in_this and (self.epoch == 0 or flow.round < self.epoch - 1):
            return False
        unit = (self.now if in_this else self.before)[1]
        return unit.insert(flow, time_ns // self.unit_ns, time_ns, unit.choice(number))

    def turn(self, salt: int) -> None:
        """Begin the next epoch; the pair that `closing` gives is forgotten."""
        self.now, self.before = self.before, self.now
        for unit in self.now:
            unit.reset(salt)
        self.epoch += 1

    def closing(self, node: str, stream: str) -> "list[bytes]":
        """The two epochs on the wire that the next `turn` forgets; none during the first."""
        if self.epoch == 0:
            return []
        sent, acknowledged = self.before
        return [
            sent.snapshot(node, stream + ".sent", sequence=self.epoch - 1),
            acknowledged.snapshot(node, stream + ".acknowledged", sequence=self.epoch - 1),
        ]


class PublishedRttUnit:
    """Round-trip times as published: ``stamps`` wraps and is signed, ``counts`` is a plain array; both spread by
    sequence.

    A packet lost, or on its way at an epoch's edge, leaves a whole time stamp in its bucket.
    """

    def __init__(self, stamps: "NodeUnit", counts: "NodeUnit", *, unit_ns: int = 10**6) -> None:
        self.stamps, self.counts, self.unit_ns = stamps, counts, unit_ns

    def sent(self, flow: "Instance", number: int, time_ns: int) -> bool:
        """Subtract the time that a packet left, and count it."""
        counted = self.counts.insert(flow, 1, time_ns, number)
        return counted and self.stamps.insert(flow, -(time_ns // self.unit_ns), time_ns, number)

    def acknowledged(self, flow: "Instance", number: int, time_ns: int) -> bool:
        """Add the time that the acknowledgement came."""
        return self.stamps.insert(flow, time_ns // self.unit_ns, time_ns, number)
