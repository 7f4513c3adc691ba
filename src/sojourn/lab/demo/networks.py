"""The demonstration's network to plan for: a core of routers, and access routers beside it."""

from __future__ import annotations

from pathlib import Path

CORE, ACCESS = 8, 24
PLANNED = "backbone"  # its name


def write_planned(path: Path) -> None:
    """A core of routers in a ring with chords, and access routers at two of them each, as a CSV file."""
    links = [(f"core{i}", f"core{(i + step) % CORE}", 10) for i in range(CORE) for step in (1, 3)]
    links += [(f"edge{i}", f"core{(i * i + near) % CORE}", 20 + near) for i in range(ACCESS) for near in (0, 1)]
    lines = [f"{source},{target},{weight}\n" for source, target, weight in links]
    path.write_text("source,target,weight\n" + "".join(lines))
