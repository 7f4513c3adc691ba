"""What a fuzzing target is, and the check that every error a user may see keeps its form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sojourn.core.errors import SojournError

__all__ = ["MAX_INPUT", "Mutator", "Target", "mutated", "require_one_line"]

MAX_INPUT = 1 << 16
LONGEST_ERROR = 600

Mutator = Callable[[bytes, int, int], bytes]


@dataclass(frozen=True)
class Target:
    """`run` takes any bytes and raises only if the product misbehaves.

    `mutate` (data, largest size, seed) changes an input in a way that keeps its structure; without it the
    fuzzer's own mutations are used alone.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    mutate: Mutator | None = None
    max_input: int = MAX_INPUT


def mutated(data: bytes, max_size: int) -> bytes:
    """The fuzzer's own mutation of some bytes."""
    import atheris

    return bytes(atheris.Mutate(data, max_size))


def require_one_line(error: SojournError) -> None:
    """An error is a line that fits a terminal, whatever the input."""
    text = str(error)
    assert "\n" not in text, text
    assert len(text) <= LONGEST_ERROR, f"an error of {len(text)} characters"
