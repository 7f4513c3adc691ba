"""The topology as a router sees it now: read from its own OSPF database with ``vtysh``.

================  ===========================================================================
source            router
================  ===========================================================================
``frr:``          FRRouting of this machine
``frr:NAME``      one that runs with the pathspace NAME (``-N NAME``), often a namespace's name
``frr:/FOLDER``   one whose sockets (``ospfd.vty``) are in a directory
================  ===========================================================================

Costs one run of ``vtysh``, about 50 ms. Its answer is bounded by `MAX_BYTES` and `VTYSH_SECONDS`.
"""

from __future__ import annotations

import csv
import json
import os
import re
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sojourn.core.errors import TopologyError, UsageError
from sojourn.mplane.planning.ospf import topology_of_database
from sojourn.mplane.planning.topology import Topology

__all__ = ["SCHEME", "is_live", "read_live_topology", "read_router_names"]

SCHEME = "frr:"
MAX_BYTES = 64_000_000
VTYSH_SECONDS = 20.0
MAX_NAMES_LETTERS = 16_000_000
_COMMANDS = ("show ip ospf database router json", "show ip ospf database network json")
_PATHSPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def is_live(source: str) -> bool:
    """Whether a source is a router, and not a file.

    >>> is_live("frr:"), is_live("net.csv")
    (True, False)
    """
    return source.startswith(SCHEME)


def read_live_topology(source: str, *, names: Mapping[str, str] | None = None, needs_links: bool = True) -> Topology:
    """The topology in a router's OSPF database; routers are named by their ids, or by `names` of these.

    A database without a single link is an error, unless it `needs_links` no more: a network may fail altogether.
    """
    where = source.removesuffix(":")
    command = ["vtysh", *_place(source), "-d", "ospfd"]
    for asked in _COMMANDS:
        command += ["-c", asked]
    databases = _decode(_answer(command, where), where)
    topology = topology_of_database(databases[0], databases[1], where=where, names=names)
    if needs_links and not topology.links:
        action = "wait until it has neighbours, and check 'show ip ospf neighbor'"
        raise TopologyError("its OSPF database has no links", where=where, action=action)
    return topology


def read_router_names(path: Path) -> dict[str, str]:
    """Names by router id, from a CSV with the columns ``router_id`` and ``name``."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            text = file.read(MAX_NAMES_LETTERS + 1)
            if len(text) > MAX_NAMES_LETTERS:
                raise TopologyError(
                    f"more than {MAX_NAMES_LETTERS} letters", where=str(path), action="give a shorter file"
                )
            rows = list(csv.DictReader(text.splitlines(), strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise TopologyError(f"no CSV: {error}", where=str(path)) from None
    names: dict[str, str] = {}
    for line, row in enumerate(rows, 2):
        router, name = (row.get("router_id") or "").strip(), (row.get("name") or "").strip()
        if not router or not name:
            action = "begin with the line router_id,name and give both on every line"
            raise TopologyError("a router id or a name is missing", where=f"{path}:{line}", action=action)
        names[router] = name
    return names


def _place(source: str) -> list[str]:
    """The options that lead vtysh to the router."""
    place = source.removeprefix(SCHEME)
    if not place:
        return []
    if place.startswith("/"):
        if not Path(place).is_dir():
            raise UsageError("there is no such directory", where=source, action="name the one with ospfd.vty")
        return ["--vty_socket", place]
    if not _PATHSPACE.fullmatch(place):
        action = "use frr:, frr:NAME or frr:/FOLDER"
        raise UsageError("that is neither a pathspace nor a directory", where=source, action=action)
    return ["-N", place]


def _answer(command: Sequence[str], where: str) -> str:
    """What vtysh printed; its complaints as errors."""
    if shutil.which(command[0]) is None:
        action = "install the package frr, or give a topology file"
        raise TopologyError("there is no vtysh on this machine", where=where, action=action)
    with tempfile.TemporaryFile() as complaints:
        # Without a pager, which it would start where stdout is a terminal.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env={**os.environ, "VTYSH_PAGER": "cat"},
        )
        try:
            printed = _read_all(process, where)
            code = process.wait(VTYSH_SECONDS)
        except subprocess.TimeoutExpired:
            raise _too_slow(where) from None
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        complaints.seek(0)
        said = complaints.read(4000).decode(errors="replace").strip().splitlines()
    if code != 0:
        raise _refused(" ".join(said), where)
    return printed.decode(errors="replace")


def _read_all(process: subprocess.Popen[bytes], where: str) -> bytes:
    """All of stdout, unless it is too much or too slow."""
    assert process.stdout is not None
    deadline = time.monotonic() + VTYSH_SECONDS
    parts: list[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise _too_slow(where)
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES:
                raise TopologyError(f"its OSPF database is more than {MAX_BYTES} bytes", where=where)


def _too_slow(where: str) -> TopologyError:
    return TopologyError(f"the router did not answer within {VTYSH_SECONDS:g} s", where=where)


def _refused(said: str, where: str) -> TopologyError:
    """Why vtysh failed, in other words than its own where these are known."""
    if "ospfd is not running" in said or "failed to connect to any daemons" in said:
        hint = "start FRRouting with ospfd"
        if os.geteuid() != 0:
            hint += ", or run as root or in the group frrvty"
        return TopologyError("no ospfd can be reached", where=where, action=hint)
    return TopologyError(f"vtysh failed: {said[-200:] or 'it said nothing'}", where=where)


def _decode(text: str, where: str) -> list[Any]:
    """The JSON objects that stand one behind another."""
    if "OSPF is not enabled" in text[:200]:
        action = "configure a 'router ospf' on it"
        raise TopologyError("OSPF is not enabled on this router", where=where, action=action)
    decoder, objects, place = json.JSONDecoder(), [], 0
    try:
        for _ in _COMMANDS:
            while text[place : place + 1].isspace():
                place += 1
            found, place = decoder.raw_decode(text, place)
            objects.append(found)
    except (ValueError, RecursionError):
        what = f"the router gave no JSON: {text[place : place + 60].strip()!r}"
        raise TopologyError(what, where=where, action="it needs FRRouting 8.4 or later") from None
    return objects
