"""Sums of delays on constrained nodes: what Domo's nodes attach to their own packets; runs on MicroPython alone.

Time stamps go in, S comes out: the delays of all packets that the node has sent since its last own packet, this one's
included, in two bytes of milliseconds::

    unit = DelayUnit(12, ticks_per_second=32768)   # as many packets as the send queue holds
    slot = unit.received(ticks)                    # a packet to forward: its start of frame, receiving
    slot = unit.generated(ticks)                   # or one of the node's own
    s = unit.sent(slot, ticks)                     # its start of frame, sending: at every attempt
    if s is not None:                              # an own packet: S goes into the frame that is on its way out
        pack(frame, at, s)
    unit.done(slot)                                # it left the queue: acknowledged, given up or dropped

Guarantee: but for rounding, S never falls short of what the node's packets waited since its last own one. It errs
upwards where an acknowledgement is lost, as the node counts to its last attempt. Where S is not known it is `NO_SUM`:
it does not fit (larger than 65 534 ms), it is the first after a start, a packet was sent that had no slot, or a stamp
ran backwards. One value is kept for that: a flag bit would halve the range, and readers of traces take 65.535 s for
unknown.

Memory: 9 bytes for each slot. Time: a look through the slots for a new packet, a few additions for the rest; nothing
is allocated by `sent` and `done` while ticks fit a small integer (a clock of 30 bits on a 32-bit board).
Clocks wrap: the stamps of one packet may lie up to half a turn apart (35 min at 1 MHz and 32 bits).

Gao et al., "Domo: Passive Per-Packet Delay Tomography in Wireless Ad-hoc Networks", Algorithm 1.
"""

from array import array

NO_SUM = 0xFFFF
LARGEST = NO_SUM - 1
NO_SLOT = -1
HELD, LOCAL, SENT = 1, 2, 4


class DelayUnit:
    """Counts delays for the packets of one send queue; made anew when the node starts, and its first S says so.

    A queue that is full refuses packets, and so does the unit: `NO_SLOT`, counted in `refused`. If such a packet is
    sent all the same, tell `sent` of it with that slot: the next S then says that it is not known.
    """

    def __init__(self, slots: int, *, ticks_per_second: int = 32768, clock_bits: int = 32) -> None:
        if not (1 <= slots <= 255 and 1000 <= ticks_per_second <= 10**6 and 16 <= clock_bits <= 32):
            raise ValueError("sizes: 1 to 255 slots, 1000 to 1000000 ticks a second, a clock of 16 to 32 bits")
        self._rate = ticks_per_second
        self._mask = (1 << clock_bits) - 1
        self._came = array("I", [0] * slots)
        self._left = array("I", [0] * slots)
        self._state = bytearray(slots)
        # Ticks from which on a sum does not fit: held there, it never grows into a big integer.
        self._limit = (LARGEST + 1) * ticks_per_second // 1000 + 1
        self._sum = 0
        self._is_whole = False
        self.refused = 0

    def received(self, ticks: int) -> int:
        """A packet to forward, by its start of frame; its slot."""
        return self._enter(HELD, ticks)

    def generated(self, ticks: int) -> int:
        """A packet of the node's own, by the time of its making; its slot."""
        return self._enter(HELD | LOCAL, ticks)

    def _enter(self, state: int, ticks: int) -> int:
        for slot in range(len(self._state)):
            if not self._state[slot]:
                self._state[slot] = state
                self._came[slot] = ticks & self._mask
                return slot
        self.refused += 1
        return NO_SLOT

    def sent(self, slot: int, ticks: int) -> "int | None":
        """A packet's start of frame goes out, for the first time or again; S if it is the node's own."""
        if slot == NO_SLOT:
            self._is_whole = False
            return NO_SUM
        state = self._held(slot)
        self._left[slot] = ticks & self._mask
        self._state[slot] = state | SENT
        if not state & LOCAL:
            return None
        delay = self._delay(slot)
        if delay < 0 or not self._is_whole:
            return NO_SUM
        total = self._sum + delay
        seconds, rest = total // self._rate, total % self._rate
        return min(seconds * 1000 + (rest * 1000 + self._rate // 2) // self._rate, NO_SUM)

    def done(self, slot: int) -> None:
        """A packet left the queue; it counts to its last attempt, and not at all if it had none."""
        if slot == NO_SLOT:
            return
        state = self._held(slot)
        self._state[slot] = 0
        if not state & SENT:
            return
        if state & LOCAL:
            self._sum, self._is_whole = 0, True
            return
        delay = self._delay(slot)
        if delay < 0:
            self._is_whole = False
        else:
            self._sum = min(self._sum + delay, self._limit)

    def _held(self, slot: int) -> int:
        state = self._state[slot] if 0 <= slot < len(self._state) else 0
        if not state:
            raise ValueError("no packet is in slot " + str(slot))
        return state

    def _delay(self, slot: int) -> int:
        """Ticks from a packet's coming to its last attempt, over a wrap of the clock too; -1 if that is half a turn."""
        delay = (self._left[slot] - self._came[slot]) & self._mask
        return delay if delay <= self._mask >> 1 else -1


def pack(frame: bytearray, at: int, value: int) -> None:
    """Write S into two bytes of a frame, most significant first."""
    frame[at] = value >> 8
    frame[at + 1] = value & 255


def unpack(frame: "bytes | bytearray", at: int = 0) -> "int | None":
    """S in ms from two bytes of a frame; None if the node could not tell."""
    value = frame[at] << 8 | frame[at + 1]
    return None if value == NO_SUM else value
