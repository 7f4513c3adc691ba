"""Progress goes to the terminal, results to stdout, whatever stdout is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys


def test_a_progress_bar_does_not_take_what_is_written_to_stdout() -> None:
    code = (
        "import sys; from sojourn.cli.output import progress\n"
        "with progress('work') as advance:\n"
        "    advance('half', 0.5); print('result', flush=True)\n"
    )
    terminal, other_end = pty.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=other_end, check=True)
        shown = os.read(terminal, 65536)
    finally:
        os.close(terminal)
        os.close(other_end)
    assert done.stdout == b"result\n"
    assert b"work" in shown
    assert b"result" not in shown
