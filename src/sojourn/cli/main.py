"""The `sojourn` command: its sub-commands, and how errors reach a user.

Results go to stdout, everything else to stderr; exit code 2 for bad usage, 1 for bad input, 130 after
Ctrl-C; never a traceback.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
import time
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_group

from sojourn import __version__
from sojourn.cli.parameters import QuickCommand, QuickGroup
from sojourn.core.compiling import CompileStep, cache_directory, observe_compilation
from sojourn.core.errors import SojournError, harmless

# Systems here are small: further threads of the linear algebra wait for work at full speed, and cost more than they do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The commands in the order of `--help`, in panels, each with its module in `cli`; a group may have further modules that
# add to it.
PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "Packets, from captures and interfaces": {
        "measure": ("segments.measure",),
        "rtt": ("capture.rtt",),
        "flows": ("capture.flows",),
        "top": ("top.command",),
        "record": ("segments.record",),
        "estimate": ("segments.estimate",),
        "batch": ("segments.batch",),
        "plan": ("plan",),
    },
    "Networks of sensors and of routers": {
        "tomography": ("tomography",),
        "sink": ("fleet.sink",),
        "mplane": ("mplane.planning", "mplane.probe", "mplane.diagnose"),
    },
    "A fleet: agents and their query unit": {
        "serve": ("fleet.serve",),
        "agent": ("fleet.agent",),
        "query": ("fleet.query",),
        "segment": ("fleet.segment",),
        "objective": ("fleet.objective",),
        "violations": ("fleet.violations",),
        "nodes": ("fleet.nodes",),
        "export": ("fleet.export",),
        "token": ("fleet.token",),
        "pseudonym": ("fleet.pseudonym",),
        "audit": ("fleet.audit",),
        "store": ("fleet.store",),
        "config": ("config",),
    },
    "To try it, and to get ready": {
        "demo": ("lab.demo",),
        "lab": ("lab.worlds",),
        "reproduce": ("reproduce",),
        "warm-up": ("warm_up",),
        "doctor": ("doctor",),
    },
}
COMMANDS = {name: modules for panel in PANELS.values() for name, modules in panel.items()}


class _Commands(QuickGroup):
    """Imports a command's module when the command is asked for, and no other's."""

    def list_commands(self, _context: object) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: object, name: str) -> Any:
        if name in COMMANDS:
            return load_command(name)
        self.commands = {known: load_command(known) for known in COMMANDS}  # which similar names are suggested from
        return None


@cache
def load_command(name: str) -> Any:
    """The command of a name, with its group of commands if it has one."""
    first, *_others = [import_module(f"sojourn.cli.{module}") for module in COMMANDS[name]]
    only = typer.Typer()
    if hasattr(first, "app"):
        only.add_typer(first.app, name=name)
    else:
        function = getattr(first, name.replace("-", "_"))
        purpose, example = getattr(first, "HELP", None), getattr(first, "EXAMPLE", None)
        only.command(cls=getattr(first, "COMMAND", QuickCommand), name=name, help=purpose, epilog=example)(function)
    command: Any = get_group(only).commands[name]
    command.rich_help_panel = next(panel for panel, names in PANELS.items() if name in names)
    return command


app = typer.Typer(
    cls=_Commands,
    name="sojourn",
    help="Passive, fine-grained measurement of latency, loss and resource use.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    epilog="Start with:  sojourn demo",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sojourn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command."""


# Of the standard library, but not on every system; commands on files do without.
ONLY_UNIX = {"fcntl", "grp", "pwd", "resource", "termios", "tty"}

# What is shorter is not worth a line; then a line now and again, so that nobody thinks it hangs.
SILENT_SECONDS, REPEAT_SECONDS = 1.0, 10.0


class _CompileNotice:
    """Says on stderr that kernels are compiled and how far it is; SOJOURN_QUIET=1 silences it."""

    def __init__(self) -> None:
        self._began = self._next = 0.0
        self._done = 0

    def __call__(self, step: CompileStep) -> None:
        now = time.monotonic()
        if not self._began:
            self._began, self._next = now, now + SILENT_SECONDS
        self._done += step.is_done
        if now < self._next or os.environ.get("SOJOURN_QUIET"):
            return
        if self._next == self._began + SILENT_SECONDS:
            print(f"sojourn: compiling for this machine, half a minute or so; {_kept()}", file=sys.stderr, flush=True)
        else:
            seconds = now - self._began
            print(f"sojourn: compiled {self._done} functions in {seconds:.0f} s", file=sys.stderr, flush=True)
        self._next = now + REPEAT_SECONDS


def _kept() -> str:
    if (found := cache_directory()) is None:
        return "every run does it anew, as nothing can be kept: set SOJOURN_CACHE_DIR to a directory"
    return f"the next run finds it in {found} (`sojourn warm-up` does it for all commands)"


def main() -> None:
    """Run the command line; the entry point of the installed script."""
    # Modules and kernels are made of a hundred thousand objects that all stay: not worth a look every 700 of them.
    gc.set_threshold(50_000)
    # Kernels that read packets exist compiled alone; who sets this is after another program's.
    os.environ.pop("NUMBA_DISABLE_JIT", None)
    _fill_closed_streams()
    observe_compilation(_CompileNotice())
    try:
        _run()
    except SojournError as error:
        print(f"sojourn: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("sojourn: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader has gone (`| head`), which is no error: end as other tools do that a closed pipe ends.
        _drop_output()
        sys.exit(141)
    except OSError as error:
        _drop_output()
        closed = "stdin or stdout is closed" if error.errno == errno.EBADF else ""
        where = error.filename or closed
        print(harmless(f"sojourn: {f'{where}: ' if where else ''}{error.strerror or error}"), file=sys.stderr)
        sys.exit(1)
    except MemoryError:
        print("sojourn: out of memory; use a sketch instead of exact matching, or less --memory", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SOJOURN_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name in ONLY_UNIX:
            print("sojourn: this needs Linux; commands on files work here, too (docs/install.md)", file=sys.stderr)
            sys.exit(1)
        if isinstance(error, ModuleNotFoundError) and (extra := _extra_with(error.name or "")):
            what = f"this needs the package {error.name}, which is not installed"
            print(f"sojourn: {what}; install it with: pip install 'sojourn[{extra}]'", file=sys.stderr)
            sys.exit(1)
        fault = harmless(f"{type(error).__name__}: {error}")
        print(f"sojourn: a fault of ours, please report it ({fault}); SOJOURN_TRACEBACK=1 shows where", file=sys.stderr)
        sys.exit(70)


def _fill_closed_streams() -> None:
    """Have a standard stream that is closed (``>&-``) fail when it is used, as in other programs, and not before.

    Python has None in its place; and the next file that is opened would take its number, to be written over. What is
    opened in the wrong direction cannot be used (EBADF). What is said on a closed stderr is lost.
    """
    for number, name, mode in ((0, "stdin", os.O_WRONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is not None:
            continue
        if (opened := os.open(os.devnull, mode)) != number:
            os.dup2(opened, number)
            os.close(opened)
        setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def _drop_output() -> None:
    """Drop what was printed and cannot be written, so that nothing complains of it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run() -> None:
    """Run Typer's application, and bring out what it turns into an exit."""
    try:
        app(prog_name="sojourn")
    except SystemExit as ending:
        if isinstance(ending.__context__, BrokenPipeError):
            raise ending.__context__ from None
        # Commands that have more to say than that they were interrupted raise their own exit.
        if isinstance(getattr(ending.__context__, "__cause__", None), KeyboardInterrupt):
            print("sojourn: interrupted", file=sys.stderr)
        sys.stdout.flush()
        raise


def _extra_with(module: str) -> str | None:
    """The extra of this distribution that installs a module.

    >>> _extra_with("uvicorn"), _extra_with("json")
    ('server', None)
    """
    from importlib.metadata import requires

    for line in requires("sojourn") or ():
        requirement, _, extra = line.partition("; extra == ")
        name = re.split(r"[<>=!~\[ ;]", requirement)[0].replace("-", "_").lower()
        if extra and name == module.partition(".")[0].lower() and extra.strip("'\"") not in ("dev", "fuzz"):
            return extra.strip("'\"")
    return None


if __name__ == "__main__":
    main()
