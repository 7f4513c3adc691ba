"""Runs on MicroPython: replays a node's packets through the delay unit, prints frames, and the heap that it takes."""

import gc

if __name__ == "__main__":
    from cases import DELAY_EVENTS

    kept = [None, None]
    levels = [0] * 4


def replay(unit, write):
    """The two bytes of S at every attempt of an own packet, one after the other."""
    slots = {}
    frames = bytearray()
    for what, packet, ticks in DELAY_EVENTS:
        if what == "sent":
            value = unit.sent(slots[packet], ticks)
            if value is not None:
                frames += b"\0\0"
                write(frames, len(frames) - 2, value)
        elif what == "done":
            unit.done(slots.pop(packet))
        else:
            slots[packet] = getattr(unit, what)(ticks)
    return frames


# collect
if __name__ == "__main__":
    levels[0] = gc.mem_alloc()
# collect
if __name__ == "__main__":
    levels[1] = gc.mem_alloc()
    from delay_unit import DelayUnit, pack
# collect
if __name__ == "__main__":
    levels[2] = gc.mem_alloc()
    kept[0] = DelayUnit(12, ticks_per_second=10**6, clock_bits=30)
# collect
if __name__ == "__main__":
    levels[3] = gc.mem_alloc()
    print("delay-memory", levels[2] - levels[1], levels[3] - levels[2])
    print("delay-frames", replay(kept[0], pack).hex(), kept[0].refused)
