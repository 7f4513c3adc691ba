"""Runs on MicroPython: prints the heap that the node unit's code, units of several sizes and 32 instances take."""

import gc

if __name__ == "__main__":
    from cases import SIZES

    kept = [None] * (len(SIZES) + 1)
    levels = [0] * (len(SIZES) + 4)
    step = 0


def note():
    """Note the heap as the last part left it."""
    global step  # noqa: PLW0603
    levels[step] = gc.mem_alloc()
    step += 1


def make():
    """Note the heap, then make the next unit."""
    note()
    size, options = SIZES[step - 3]
    kept[step - 3] = NodeUnit(size[0], size[1], **options)


# collect
if __name__ == "__main__":
    note()
# collect
if __name__ == "__main__":
    note()
    from unit import Instance, NodeUnit
# collect
if __name__ == "__main__":
    make()
# collect
if __name__ == "__main__":
    make()
# collect
if __name__ == "__main__":
    make()
# collect
if __name__ == "__main__":
    make()
# collect
if __name__ == "__main__":
    note()
    kept[-1] = [Instance(2**63 + i) for i in range(32)]
# collect
if __name__ == "__main__":
    note()
    print("code", levels[2] - levels[1])
    for i in range(len(SIZES)):
        buckets = len(kept[i].sums.data) + (len(kept[i].counts.data) if kept[i].counts else 0)
        print("memory", buckets, levels[i + 3] - levels[i + 2])
    print("instance", (levels[-1] - levels[-2]) // 32)
