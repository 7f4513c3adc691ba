"""Parameters that fill a given memory, for traffic that a survey has seen.

- LDA: a ladder of eight banks, 1, ½, ¼ …: some bank suits any loss rate up to tens of per cent, without tuning.
- LDS: four rows. Without loss a flow has one cell per row and all rows see everything; with loss it has as many cells
  as keep strangers rare, and the rows sample 1, 1, ⅛ and 1/64 (1, ¼, 1/16 and 1/64 from 1 % loss on).
- Sample: eight groups per flow, so that most flows have one of their own, but no more than an eighth of the slots.
- COLATE: counters with counts, 16 per flow or fewer where that would leave a flow no counter of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TypeVar

from sojourn.core.errors import ParameterError
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import SampleParameters

__all__ = ["changed", "fit_cells", "fit_colate", "fit_lda", "fit_lds", "fit_sample"]

LADDER = tuple(2.0**-i for i in range(8))
LITTLE_LOSS_ROWS = (1.0, 1.0, 0.125, 0.015625)
MUCH_LOSS_ROWS = (1.0, 0.25, 0.0625, 0.015625)
MUCH_LOSS = 0.01
LDS_ROWS = 4
MOST_CELLS_PER_FLOW = 64
LEAST_LOSS = 1e-5
CELLS_PER_FLOW, LEAST_COLUMNS = 2, 32
GROUPS_PER_FLOW = 8
LEAST_GROUPS = 8
SLOTS_PER_GROUP = 8


P = TypeVar("P", bound=Parameters)


def changed(parameters: P, changes: Mapping[str, str]) -> P:
    """The parameters with some set from text: numbers, words, true or false, lists with commas.

    >>> changed(fit_lda(16384), {"rows": "64", "shares": "1,0.5"}).shares
    (1.0, 0.5)
    """
    known = {field.name: getattr(parameters, field.name) for field in fields(parameters)}
    values: dict[str, object] = {}
    for name, text in changes.items():
        if name not in known:
            raise ParameterError(
                f"there is no parameter {name!r}", where=parameters.kind, action=f"use one of {', '.join(known)}"
            )
        values[name] = _value(text, known[name], f"{parameters.kind}.{name}")
    return replace(parameters, **values)


def _value(text: str, like: object, where: str) -> object:
    try:
        if isinstance(like, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(like, tuple):
            return tuple(float(part) for part in text.split(","))
        return int(text) if isinstance(like, int) else text
    except (ValueError, KeyError):
        raise ParameterError(f"{text!r} is no value for it", where=where, action=f"write it like {like}") from None


def _cells(memory_bytes: int, one: Parameters, least: int) -> int:
    """How many times the memory holds the cells of `one`."""
    cells = memory_bytes * 8 // one.memory_bits
    if cells < least:
        raise ParameterError(
            f"{memory_bytes} bytes are too few",
            where=one.kind,
            action=f"give at least {-(-least * one.memory_bits // 8)}",
        )
    return cells


def fit_lda(memory_bytes: int, *, salt: int = 0) -> LdaParameters:
    """The LDA that fills the memory.

    >>> fit_lda(16384).rows
    170
    """
    one = LdaParameters(rows=1, shares=LADDER)
    return LdaParameters(rows=_cells(memory_bytes, one, 2), shares=LADDER, salt=salt)


def fit_lds(memory_bytes: int, *, flows: int, loss: float, salt: int = 0) -> LdsParameters:
    """The LDS that fills the memory."""
    columns = _cells(memory_bytes, LdsParameters(rows=LDS_ROWS, columns=1), 8)
    if loss < LEAST_LOSS:
        return LdsParameters(rows=LDS_ROWS, columns=columns, salt=salt)
    shares = MUCH_LOSS_ROWS if loss >= MUCH_LOSS else LITTLE_LOSS_ROWS
    spread = max(1, min(columns // (2 * max(flows, 1)), columns // 4, MOST_CELLS_PER_FLOW))
    return LdsParameters(rows=LDS_ROWS, columns=columns, spread=spread, shares=shares, salt=salt)


def fit_cells(memory_bytes: int, *, flows: int, salt: int = 0) -> LdsParameters:
    """Just the cells that tell every flow's size and loss: two per flow, in at most three fifths of the memory."""
    most = _cells(memory_bytes * 3 // 5, LdsParameters(rows=LDS_ROWS, columns=1), 8)
    columns = min(most, max(LEAST_COLUMNS, -(-CELLS_PER_FLOW * flows // LDS_ROWS)))
    return LdsParameters(rows=LDS_ROWS, columns=columns, salt=salt)


def fit_colate(memory_bytes: int, *, flows: int, salt: int = 0) -> CounterVectorParameters:
    """The counter vector that fills the memory."""
    one = CounterVectorParameters(counters=1, per_flow=1, count_bits=24)
    counters = _cells(memory_bytes, one, 64)
    per_flow = max(1, min(16, counters // (2 * max(flows, 1))))
    return CounterVectorParameters(counters=counters, per_flow=per_flow, count_bits=24, salt=salt)


def fit_sample(memory_bytes: int, *, flows: int, salt: int = 0) -> SampleParameters:
    """The coordinated sample that fills the memory.

    >>> fit_sample(128_000, flows=100).groups
    800
    """
    bits = memory_bytes * 8
    slots = 1 << 24
    while slots > 1:
        groups = max(1, min(max(LEAST_GROUPS, GROUPS_PER_FLOW * flows), slots // SLOTS_PER_GROUP, 1 << 20))
        fitted = SampleParameters(slots=slots, groups=groups, salt=salt)
        if fitted.memory_bits <= bits:
            return fitted
        slots = min(slots - 1, slots * bits // fitted.memory_bits)
    raise ParameterError(f"{memory_bytes} bytes are too few", where="sample", action="give at least 256")
