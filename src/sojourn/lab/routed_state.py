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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.errors import SojournError, UsageError
from sojourn.lab.namespaces import NAMESPACES, PREFIX, remove_namespace, run_command, start_time
from sojourn.lab.routed_plan import LabPlan, Node
from sojourn.lab.routers import daemon_pids

__all__ = ["FOLDER", "LabState", "read_lab", "remove_lab", "remove_stale_labs"]

FOLDER = Path("/run/sojourn/lab")
STATE = "state.json"
MAX_STATE_BYTES = 4_000_000
GONE_SECONDS = 10.0
_NAME = re.compile(r"[a-z0-9_]{1,24}")


@dataclass
class LabState:
    """A lab: its label, its nodes and links, and which process made it (0: it outlives its maker)."""

    label: str
    plan: LabPlan
    owner: int = 0
    is_built: bool = False

    @classmethod
    def named(cls, name: str, plan: LabPlan) -> LabState:
        """A lab that lives until it is taken down."""
        return cls(label_of(name), plan)

    @classmethod
    def of_this_process(cls, label: str, plan: LabPlan) -> LabState:
        """A lab that others may remove once this process has ended."""
        return cls(label, plan, os.getpid())

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
        FOLDER.mkdir(parents=True, exist_ok=True)
        try:
            self.folder.mkdir()
        except FileExistsError:
            action = f"take it down first (sojourn lab down --name {self.name}), or use another --name"
            raise UsageError(f"the lab {self.name} is up already", where="lab", action=action) from None
        self._write()

    def mark_built(self) -> None:
        """Note that nothing is missing any more."""
        self.is_built = True
        self._write()

    def _write(self) -> None:
        state = {"label": self.label, "owner": self.owner, "is_built": self.is_built, "plan": self.plan.to_json()}
        unfinished = self.folder / f"{STATE}.new"
        unfinished.write_text(json.dumps(state))
        unfinished.replace(self.folder / STATE)


def label_of(name: str) -> str:
    """How the namespaces of a named lab begin."""
    if not _NAME.fullmatch(name):
        action = "use 1 to 24 small letters, digits and underscores"
        raise UsageError(f"a lab cannot be named {name!r}", where="lab", action=action)
    return f"{PREFIX}-lab-{name}"


def read_lab(name: str) -> LabState:
    """The state of a lab that is up."""
    path = FOLDER / label_of(name).removeprefix(f"{PREFIX}-lab-") / STATE
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_STATE_BYTES + 1)
        data = json.loads(text)
        return LabState(str(data["label"]), LabPlan.from_json(data["plan"]), int(data["owner"]), bool(data["is_built"]))
    except FileNotFoundError:
        action = "build one with: sojourn lab up TOPOLOGY"
        raise UsageError(f"no lab {name} is up", where="lab", action=action) from None
    except (ValueError, KeyError, TypeError):
        action = f"remove what is left with: sojourn lab down --name {name}"
        raise SojournError("no state of a lab", where=str(path), action=action) from None


def remove_stale_labs() -> list[str]:
    """Remove the labs of processes that no longer run; their directories' names."""
    removed = []
    for folder in sorted(FOLDER.glob("*-*-*")):
        pid, started, _ = folder.name.split("-", 2)
        if pid.isdigit() and started.isdigit() and start_time(int(pid)) != int(started):
            remove_traces(f"{PREFIX}-{folder.name}", folder)
            removed.append(folder.name)
    return removed


def remove_lab(state: LabState) -> list[str]:
    """Remove every trace of a lab; what there was."""
    return remove_traces(state.label, state.folder)


def remove_traces(label: str, folder: Path) -> list[str]:
    """End a lab's processes, remove its namespaces and its directory; what there was."""
    found = []
    namespaces = sorted(path.name for path in NAMESPACES.glob(f"{label}-*"))
    pids = set(_processes(namespaces, folder))
    for pid in sorted(pids):
        found.append(f"process {pid}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for namespace in namespaces:
        found.append(f"namespace {namespace}")
        remove_namespace(namespace)
    _wait_until_gone(pids)
    if folder.exists():
        found.append(f"directory {folder}")
        shutil.rmtree(folder, ignore_errors=True)
    for parent in (FOLDER, FOLDER.parent):
        with suppress(OSError):  # others' labs are in it
            parent.rmdir()
    return found


def _processes(namespaces: list[str], folder: Path) -> Iterator[int]:
    for namespace in namespaces:
        with suppress(SojournError):
            yield from map(int, run_command("ip", "netns", "pids", namespace).split())
    for router in folder.glob("*/"):
        yield from daemon_pids(router)


def _wait_until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while any(_is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    """Whether a process is there, other than as a name that its parent has not taken note of."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
