"""What the kernel says of its clock: whether something (chrony, ntpd, ptp4l) keeps it in step, and how well.

Linux keeps this for `adjtimex`: the maximum error grows by 500 µs a second since the clock was last adjusted, until it
counts as not synchronised. Cost: one system call.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from sojourn.epochs.epoch import KernelClock

_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000
_TIME_ERROR = 5
# Behind the fields that are read, the kernel's structure has more; none of it is larger than this.
_REST_BYTES = 256
# What keeps a clock in step moves it by less at once; a machine that slept has its count go on with the clock, or not.
LEAST_STEP_NS = 10_000_000_000


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * _REST_BYTES),
    )


@cache
def _adjtimex() -> Any:
    """The C library's function; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)


def kernel_clock() -> KernelClock | None:
    """The kernel's present word; None where it does not say."""
    function = _adjtimex()
    if function is None:
        return None
    said = _Timex(modes=0)
    state = function(ctypes.byref(said))
    if state < 0:
        return None
    is_in_step = state != _TIME_ERROR and not said.status & _STA_UNSYNC
    offset_ns = said.offset if said.status & _STA_NANO else 1000 * said.offset
    return KernelClock(is_in_step, max(0, 1000 * said.maxerror), offset_ns)


class StepWatch:
    """Notices when a clock was set by more than `LEAST_STEP_NS` between two looks."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None

    def step_ns(self, now_ns: int, count_ns: int) -> int:
        """By how much the clock was set since the last look; 0 if it was not. `count_ns` is the machine's own count.

        >>> watch = StepWatch()
        >>> [watch.step_ns(*look) for look in [(0, 0), (10**9, 10**9), (86_401 * 10**9, 2 * 10**9)]]
        [0, 0, 86399000000000]
        """
        before, self._offset_ns = self._offset_ns, now_ns - count_ns
        step = 0 if before is None else self._offset_ns - before
        return step if abs(step) >= LEAST_STEP_NS else 0
