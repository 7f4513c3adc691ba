"""What a check found: a verdict, what it rests on, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's: `warn` costs accuracy or comfort, `fail` keeps something from working or being safe."""

    verdict: Verdict
    check: str
    what: str
    action: str = ""


Check = Callable[[], Iterable[Finding]]


def findings(checks: Iterable[tuple[str, Check]]) -> list[Finding]:
    """All findings, in order; a check that breaks is a finding, too."""
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += check()
        except Exception as error:
            found.append(Finding("warn", name, f"could not be checked: {error}"))
    return found
