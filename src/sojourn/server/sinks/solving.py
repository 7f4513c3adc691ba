"""One window of a collection, solved in a process of its own; what travels there and back is small and quick to read.

Answers come back in the form in which they are stored: making a hundred thousand small arrays of them would keep the
query unit's interpreter busy for a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sojourn.tomography.bounds.constraints import ConstraintOptions
from sojourn.tomography.delays.estimate import PacketAnswer, PacketKey, WindowSpan, solve_span
from sojourn.tomography.trace import PacketRow

LONG = np.dtype("<i8")


@dataclass(frozen=True, kw_only=True)
class SolvedWindow:
    """Answers by packet, as they are stored; packets without one could not be used."""

    answers: dict[PacketKey, bytes] = field(default_factory=dict)
    may_be_exact: bool
    conflicts: int = 0
    is_solved: bool = False


def solve_window(rows: Sequence[PacketRow], span: WindowSpan, omega_ns: int, may_be_exact: bool) -> SolvedWindow:
    """The answers of a span."""
    solved = solve_span(rows, span, ConstraintOptions(omega_ns=omega_ns), may_be_exact=may_be_exact)
    return SolvedWindow(
        answers={key: _packed(answer) for key, answer in solved.answers.items()},
        may_be_exact=solved.may_be_exact,
        conflicts=solved.conflicts,
        is_solved=solved.is_solved,
    )


def _packed(answer: PacketAnswer) -> bytes:
    columns = (answer.delay_ns, answer.low_ns, answer.high_ns, answer.likely_low_ns, answer.likely_high_ns)
    return np.array(columns, LONG).tobytes()
