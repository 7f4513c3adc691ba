"""`sojourn` as tests run it: inside of this process, which saves its start, or as a process where that is the point."""

from __future__ import annotations

import sys
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from typer.testing import CliRunner

from sojourn.cli.main import main

__all__ = ["SOJOURN", "sojourn"]

SOJOURN = (sys.executable, "-m", "sojourn.cli.main")


def sojourn(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """What the command prints and says, and the code that it ends with, as its process would: errors are lines."""
    words = ["sojourn", *map(str, arguments)]
    code: object = 0
    with chdir(cwd or Path.cwd()), patch.object(sys, "argv", words), CliRunner().isolation() as (out, err, _):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
        return CompletedProcess(words, int(str(code)), out.getvalue().decode(), err.getvalue().decode())
