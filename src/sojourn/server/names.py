"""Names of nodes, streams, tags and collections, as requests carry them."""

from __future__ import annotations

from fastapi import HTTPException

__all__ = ["checked_name"]


def checked_name(name: str) -> str:
    """A name that an epoch could carry; 400 if it is none."""
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= 200 or not name.isprintable():
        raise HTTPException(400, "a name has 1 to 200 bytes of printable text")
    return name
