"""Tables of the documentation that benchmarks write."""

from __future__ import annotations

from pathlib import Path


def write(page: Path, name: str, lines: list[str]) -> None:
    """Replace what is between a table's two markers."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.read_text().split(start)
    after = rest.split(end)[1]
    page.write_text("\n".join([before + start, *lines, end]) + after)
