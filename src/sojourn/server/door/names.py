"""Names of nodes, streams, tags and collections, as requests carry them."""

from __future__ import annotations

from fastapi import HTTPException

from sojourn.core.names import NAME_RULE, is_name

__all__ = ["checked_name"]


def checked_name(name: str) -> str:
    """The name; 400 if nothing can be called so."""
    if not is_name(name):
        raise HTTPException(400, f"a name has {NAME_RULE}")
    return name
