"""Merging epochs of one stream into fewer: time resolution is lost, counts never.

Epochs merge by addition when they have the same parameters, salt included; the width of their counters may differ, and
grows where a sum needs it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields, replace
from hashlib import blake2b
from typing import Any

from sojourn.core.errors import MismatchError, SketchFullError
from sojourn.core.keys import Key
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sketch import AnySketch
from sojourn.sketches.stack import Stack, StackParameters

WIDTHS = ("bits", "count_bits", "byte_bits")
WIDEST = 64


def _widths(parameters: Parameters) -> dict[str, int]:
    """The widths of the counters that a sketch has; those of a stack's parts behind the part's name."""
    if isinstance(parameters, StackParameters):
        return {f"{part}.{name}": bits for part, p in parameters.parts for name, bits in _widths(p).items()}
    found = {name: getattr(parameters, name, 0) for name in WIDTHS}
    return {name: bits for name, bits in found.items() if bits}


def _with_widths(parameters: Parameters, widths: dict[str, int]) -> Parameters:
    if isinstance(parameters, StackParameters):
        return StackParameters(parts=tuple((part, _with_widths(p, _of(part, widths))) for part, p in parameters.parts))
    changed: Any = widths
    return replace(parameters, **changed)


def _of(part: str, widths: dict[str, int]) -> dict[str, int]:
    return {name.removeprefix(f"{part}."): bits for name, bits in widths.items() if name.startswith(f"{part}.")}


def _without_widths(parameters: Parameters) -> list[tuple[str, object]]:
    if isinstance(parameters, StackParameters):
        return [(part, (p.kind, sorted(_widths(p)), _without_widths(p))) for part, p in parameters.parts]
    widths = _widths(parameters)
    return [(f.name, getattr(parameters, f.name)) for f in fields(parameters) if f.name not in widths]


def can_merge(one: Epoch, other: Epoch | EncodedEpoch) -> bool:
    """Whether two epochs differ in nothing but their time, contents and counters' widths."""
    same = (one.node, one.stream, one.parameters.kind) == (other.node, other.stream, other.parameters.kind)
    widths = _widths(one.parameters)
    if not same or _widths(other.parameters).keys() != widths.keys():
        return False
    return _with_widths(other.parameters, widths) == one.parameters


def merging_key(epoch: EncodedEpoch) -> str:
    """What epochs that can be merged have in common, and others not: an index of it finds them without decoding."""
    parameters = epoch.parameters
    text = repr((epoch.node, epoch.stream, parameters.kind, sorted(_widths(parameters)), _without_widths(parameters)))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def merged_epoch(one: Epoch, other: Epoch) -> Epoch:
    """One epoch that holds both, with the later sequence number and both lists of keys (none unless both have one).

    Epochs that are cut among a segment's packets must follow each other.
    """
    cut = _joined_cut(one, other)
    pair = one.sketch, other.sketch
    widths = {name: max(bits, _widths(other.parameters)[name]) for name, bits in _widths(one.parameters).items()}
    while True:
        left, right = (_widened(sketch, widths) for sketch in pair)
        try:
            merged = left.merge(right)
            break
        except SketchFullError:
            if min(widths.values(), default=WIDEST) >= WIDEST:
                raise
            widths = {name: min(WIDEST, bits + 1) for name, bits in widths.items()}
    return Epoch(one.node, one.stream, max(one.sequence, other.sequence), merged.freeze(), _all_keys(one, other), cut)


def _joined_cut(one: Epoch, other: Epoch) -> Cut | None:
    """Where both together begin and end; a `MismatchError` if other packets lie between them."""
    if one.cut is None or other.cut is None:
        return None
    earlier, later = (one.cut, other.cut) if one.sequence < other.sequence else (other.cut, one.cut)
    apart = abs(one.sequence - other.sequence)
    if not later.continues or later.sequences != apart:
        raise MismatchError("the epochs do not follow each other", where=one.stream)
    return earlier.joined(later)


def _widened(sketch: AnySketch, widths: dict[str, int]) -> AnySketch:
    """The sketch as one with wider counters, for merging: the counters themselves are the same, and not copied."""
    wide = copy(sketch)
    wide.parameters = _with_widths(sketch.parameters, widths)
    if isinstance(wide, Stack) and isinstance(sketch, Stack):
        wide = Stack(wide.parameters, {n: _widened(part, _of(n, widths)) for n, part in sketch.parts.items()})
        wide.recorded, wide.first_ns, wide.last_ns = sketch.recorded, sketch.first_ns, sketch.last_ns
    return wide


def _all_keys(one: Epoch, other: Epoch) -> tuple[Key, ...] | None:
    if one.keys is None or other.keys is None:
        return None
    return tuple(dict.fromkeys((*one.keys, *other.keys)))
