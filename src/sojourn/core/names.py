"""Names of nodes, streams, tags and collections: one rule, wherever one is made.

A name becomes a segment of a URL's path and part of a line of text, so it is printable, short, has no slash and is not
``.`` or ``..``, which clients and proxies resolve away.
"""

from __future__ import annotations

from sojourn.core.keys import MAX_NAME_BYTES

__all__ = ["NAME_RULE", "is_name"]

NAME_RULE = f"1 to {MAX_NAME_BYTES} bytes of printable text without a slash, other than . and .."


def is_name(text: str) -> bool:
    """Whether a text can name a node, stream, tag or collection.

    >>> [is_name(text) for text in ("gateway-7", "a/b", "..", "", "a\\nb")]
    [True, False, False, False, False]
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    return 1 <= size <= MAX_NAME_BYTES and text.isprintable() and "/" not in text and text not in (".", "..")
