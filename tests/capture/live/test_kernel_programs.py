"""Programs for the kernel: what it refuses, and where it cannot be asked, is one error."""

from __future__ import annotations

import os

import pytest

from machine import needs_root
from sojourn.capture.live import interface
from sojourn.capture.live.interface import ProgramKind, load_program
from sojourn.core.errors import LiveCaptureError

with_root = needs_root("BPF PROGRAMS ARE NOT TESTED: they need root")


@with_root
def test_a_program_that_does_not_end_is_refused_by_the_kernel() -> None:
    with pytest.raises(LiveCaptureError, match="the kernel takes no BPF program: Invalid argument"):
        load_program(ProgramKind.SOCKET_FILTER, [(0xB7, 0, 0, 0, 0)])


@with_root
def test_a_program_that_returns_is_taken() -> None:
    os.close(load_program(ProgramKind.SOCKET_FILTER, [(0xB7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]))


def test_a_machine_whose_system_call_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface.platform, "machine", lambda: "pdp11")
    with pytest.raises(LiveCaptureError, match="not known on pdp11"):
        load_program(ProgramKind.XDP, [(0x95, 0, 0, 0, 0)])
