"""The fuzzing targets work on their seeds, and what should stop them does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"capture", "rtt", "compressed", "epochs", "expressions", "programs", "keys"}

READ_TOO_FAR = """
from numba import njit
from fuzz.guards import GuardedBytes
from sojourn.core.kernels import address_of, word_at

@njit
def read(data, offset):
    return word_at(address_of(data), offset)

data = GuardedBytes().place(bytes(range(16)))
assert read(data, 8) == 0x0F0E0D0C0B0A0908
print("inside", flush=True)
read(data, 9)
"""


def run(*arguments: str, interpreted: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1" if interpreted else "0"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "interpreted", [False, pytest.param(True, marks=pytest.mark.long)], ids=["compiled", "interpreted"]
)
def test_every_target_holds_on_its_seeds(interpreted: bool) -> None:
    done = run("-m", "fuzz", "--seeds", interpreted=interpreted)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = dict(line.removesuffix(" seeds").split(": ") for line in done.stdout.splitlines())
    assert set(counts) == TARGETS
    assert all(int(count) >= 7 for count in counts.values())


def test_a_compiled_kernel_that_reads_too_far_is_stopped_by_the_guard() -> None:
    done = run("-c", READ_TOO_FAR, interpreted=False)
    assert done.stdout == "inside\n"
    assert done.returncode == -signal.SIGSEGV


def test_an_interpreted_kernel_that_reads_too_far_is_stopped_by_the_check() -> None:
    checked = "from fuzz.interpreted import check_memory\ncheck_memory()\n" + READ_TOO_FAR
    done = run("-c", checked, interpreted=True)
    assert done.stdout == "inside\n"
    assert "OutOfRangeError: 8 bytes at offset 9" in done.stderr
