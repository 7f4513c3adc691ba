"""`sojourn` as tests run it: inside of this process, which saves its start, or as a process where that is the point."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from click.testing import Result
from typer.testing import CliRunner

from sojourn.cli.main import app, main

__all__ = ["SOJOURN", "invoked", "printed", "sojourn"]

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


def invoked(*arguments: object, env: Mapping[str, str] | None = None) -> Result:
    """What the command prints, says and ends with; raises what it raises, instead of the line of its main."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def printed(*arguments: object) -> str:
    """What a command prints that ends well."""
    result = invoked(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout
