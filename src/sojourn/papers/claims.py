"""Claims: what a paper says of an experiment, beside what its method and ours reach here.

A claim is one quantity of one experiment. ``paper`` is the published figure (none where the paper gives no number),
``literal`` what the published method reaches in our world, ``joint`` what our decoder makes of the same counters,
``baseline`` what the quantity's named rival reaches. ``reproduced`` says whether the literal figure bears the paper's
out; a claim that does not reproduce is printed like any other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Claim", "claims_json", "claims_table", "write_claims"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the table; numbers in ``unit``, None where there is none."""

    experiment: str
    quantity: str
    unit: str
    paper: float | None = None
    literal: float | None = None
    joint: float | None = None
    baseline: float | None = None
    reproduced: bool | None = None


def claims_json(claims: Sequence[Claim]) -> list[dict[str, object]]:
    """The claims as plain rows; what is not a finite number is null."""
    return [{name: _plain(value) for name, value in asdict(claim).items()} for claim in claims]


def _plain(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _shown(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def claims_table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table."""
    titles = ("experiment", "quantity", "unit", "paper", "literal", "joint", "baseline", "reproduced")
    lines = ["| " + " | ".join(titles) + " |", "|---|---|---|--:|--:|--:|--:|---|"]
    lines += ["| " + " | ".join(_shown(getattr(claim, title)) for title in titles) + " |" for claim in claims]
    return "\n".join(lines)


def write_claims(directory: Path, title: str, remarks: str, claims: Sequence[Claim], figures: Sequence[str]) -> None:
    """Write ``claims.json`` and ``claims.md`` (remarks, table, figures by name), each as a whole or not at all."""
    rows = json.dumps(claims_json(claims), ensure_ascii=False, indent=1, allow_nan=False)
    pictures = "".join(f"\n![{name}]({name}.svg)\n" for name in figures)
    _replace(directory / "claims.json", rows + "\n")
    _replace(directory / "claims.md", f"# {title}\n\n{remarks}\n\n{claims_table(claims)}\n{pictures}")


def _replace(path: Path, text: str) -> None:
    """Put a whole file in the place of an old one, so that stopping in between leaves the old one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
