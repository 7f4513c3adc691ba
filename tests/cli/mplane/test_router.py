"""`sojourn mplane router`: what cannot be is refused in one line, before anything is captured."""

from __future__ import annotations

import subprocess
import sys

import pytest

TWO = ("--interface", "lo=a@127.0.0.2", "--interface", "nosuch0=b@127.0.0.3")


def router(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sojourn.cli.main", "mplane", "router", "--name", "r", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--interface", "eth0=a"), 2, "segments need two interfaces"),
        (("--interface", "eth0", "--interface", "eth1=b"), 2, "'eth0' is no interface and neighbour"),
        ((*TWO, "--dscp", "0,ef"), 2, "'0,ef' are no classes"),
        ((*TWO, "--dscp", "64"), 2, "numbers from 0 to 63"),
        ((*TWO, "--interval", "10ms"), 2, "100 or more"),
        ((*TWO, "--max-delay", "20s"), 2, "use up to 10 s"),
        ((*TWO, "--buffer", "64KiB"), 2, "use 1048576 or more"),
        ((*TWO, "--format", "parquet"), 2, "use jsonl or csv"),
        (TWO, 1, "lo: no Ethernet interface"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = router(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_has_an_example() -> None:
    command = [sys.executable, "-m", "sojourn.cli.main", "mplane", "router", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Example:" in text
    assert "IFACE=NEIGHBOUR" in text
