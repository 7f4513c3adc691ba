"""Routed labs as they lie in the file system: what is up, who made it, and how every trace of it is removed.

A lab is a directory ``/run/sojourn/lab/NAME`` with ``state.json`` and a directory per router, and namespaces whose
names begin with the lab's label. The directory is made first and removed last, so that making it decides who builds,
and what a killed process leaves can always be found. Removing needs no state: namespaces are found by their names,
processes by their namespace and by their pid files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sojourn.core.errors import SojournError, UsageError
from sojourn.lab.namespaces import NAMESPACES, PREFIX, is_alive, own_prefix, processes_in, remove_namespaces, start_time
from sojourn.lab.routed.plan import LabPlan, Node
from sojourn.lab.routed.routers import daemon_pids

FOLDER = Path("/run/sojourn/lab")
STATE = "state.json"
MAX_STATE_BYTES = 4_000_000
GONE_SECONDS = 10.0
_ATTEMPTS = 20
_NAME = re.compile(r"[a-z0-9_]{1,24}")


@dataclass
class LabState:
    """A lab: how its namespaces' names begin, its nodes and links, who made it, and whether nothing is missing."""

    label: str
    plan: LabPlan
    maker: str = field(default_factory=own_prefix)
    is_built: bool = False

    @classmethod
    def named(cls, name: str, plan: LabPlan) -> LabState:
        """A lab that lives until it is taken down."""
        return cls(label_of(name), plan)

    @property
    def folder(self) -> Path:
        return FOLDER / self.label.removeprefix(f"{PREFIX}-").removeprefix("lab-")

    @property
    def name(self) -> str:
        return self.folder.name

    def namespace(self, node: Node) -> str:
        """The namespace of a router or host."""
        return f"{self.label}-{node.label}"

    def create(self) -> None:
        """Make the lab's directory; refuse where there is one."""
        for _ in range(_ATTEMPTS):
            # Whoever takes the last lab down removes the directories above, maybe right now.
            with suppress(FileNotFoundError):
                for parent in (FOLDER.parent, FOLDER):
                    with suppress(FileExistsError):
                        make_readable(parent)
                try:
                    make_readable(self.folder)
                except FileExistsError:
                    raise _there_already(self.name) from None
                break
        self._write()

    def mark_built(self) -> None:
        """Note that nothing is missing any more."""
        self.is_built = True
        self._write()

    def _write(self) -> None:
        state = {"label": self.label, "maker": self.maker, "is_built": self.is_built, "plan": self.plan.to_json()}
        unfinished = self.folder / f"{STATE}.new"
        unfinished.write_text(json.dumps(state))
        unfinished.replace(self.folder / STATE)


def make_readable(folder: Path) -> None:
    """Make a directory that the daemons' user can enter, whatever the caller's mask."""
    folder.mkdir()
    folder.chmod(0o755)


def label_of(name: str) -> str:
    """How the namespaces of a named lab begin."""
    if not _NAME.fullmatch(name):
        action = "use 1 to 24 small letters, digits and underscores"
        raise UsageError(f"a lab cannot be named {name!r}", where="lab", action=action)
    return f"{PREFIX}-lab-{name}"


def _there_already(name: str) -> UsageError:
    """Why a lab of that name cannot be built: it is up, being built, or was never finished."""
    down = f"sojourn lab down --name {name}"
    try:
        state = read_lab(name)
    except SojournError:
        state = None
    if state is not None and state.is_built:
        action = f"take it down first ({down}), or use another --name"
        return UsageError(f"the lab {name} is up already", where="lab", action=action)
    if state is not None and is_running(state.maker):
        return UsageError(f"the lab {name} is being built", where="lab", action="wait, or use another --name")
    what = f"a lab {name} was begun and not finished"
    return UsageError(what, where="lab", action=f"remove what is left with: {down}")


def is_running(maker: str) -> bool:
    """Whether the process that made a lab still runs."""
    _, pid, started = maker.split("-") if maker.count("-") == 2 else ("", "0", "1")
    return pid.isdigit() and started.isdigit() and start_time(int(pid)) == int(started)


def read_lab(name: str) -> LabState:
    """The state of a lab that is up, or half up."""
    label = label_of(name)
    path = FOLDER / name / STATE
    try:
        with open(path, encoding="utf-8") as file:
            data = json.loads(file.read(MAX_STATE_BYTES + 1))
        state = LabState(
            str(data["label"]), LabPlan.from_json(data["plan"]), str(data["maker"]), bool(data["is_built"])
        )
    except FileNotFoundError:
        others = [path.name for path in labs() if path.name != name]
        action = f"up are {', '.join(others)} (--name)" if others else "build one with: sojourn lab up TOPOLOGY"
        raise UsageError(f"no lab {name} is up", where="lab", action=action) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        state = None
    if state is None or state.label != label:
        action = f"remove what is left with: sojourn lab down --name {name}"
        raise SojournError("no state of a lab", where=str(path), action=action) from None
    return state


def labs() -> list[Path]:
    """The directories of named labs, whole or not."""
    return sorted(path for path in FOLDER.glob("*") if _NAME.fullmatch(path.name))


@dataclass(frozen=True)
class Removed:
    """What there was of a lab."""

    processes: int = 0
    namespaces: int = 0
    has_folder: bool = False

    def __str__(self) -> str:
        """Such as ``12 processes, 6 namespaces``; empty where there was nothing."""
        counts = ((self.processes, "processes"), (self.namespaces, "namespaces"), (int(self.has_folder), "directory"))
        return ", ".join(f"{count} {what}" for count, what in counts if count)


def remove_named_lab(name: str) -> Removed:
    """Remove every trace of a lab, whatever of it there is."""
    return _remove(label_of(name), FOLDER / name)


def remove_lab(state: LabState) -> Removed:
    """Remove every trace of a lab."""
    return _remove(state.label, state.folder)


def remove_stale_labs() -> list[str]:
    """Remove the labs of processes that no longer run; their directories' names."""
    removed = []
    for folder in sorted(FOLDER.glob("*-*-*")):
        pid, started, _ = folder.name.split("-", 2)
        if not is_running(f"{PREFIX}-{pid}-{started}"):
            _remove(f"{PREFIX}-{folder.name}", folder)
            removed.append(folder.name)
    return removed


def _remove(label: str, folder: Path) -> Removed:
    """End a lab's processes, remove its namespaces and, at last, its directory."""
    namespaces = sorted(path.name for path in NAMESPACES.glob(f"{label}-*"))
    pids = {*processes_in(namespaces), *(pid for router in folder.glob("*/") for pid in daemon_pids(router).values())}
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    remove_namespaces(namespaces)
    deadline = time.monotonic() + GONE_SECONDS
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    has_folder = folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    for parent in (FOLDER, FOLDER.parent):
        with suppress(OSError):  # others' labs are in it
            parent.rmdir()
    return Removed(len(pids), len(namespaces), has_folder)
