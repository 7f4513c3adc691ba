"""Merging epochs of one stream into fewer: time resolution is lost, counts never.

Epochs merge by addition when they have the same parameters, salt included; the width of their counters may differ, and
grows where a sum needs it. Bucket arrays are merged as they are encoded (`merged_encoded`), in plain Python: a node
that records metrics has neither numpy nor a compiler. The bytes are those that `merged_epoch` would be encoded to.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from sojourn.core.errors import MismatchError, SketchFullError
from sojourn.core.keys import Key
from sojourn.epochs.cbor import dumps
from sojourn.epochs.encoded import VERSION, EncodedEpoch, check_word
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.epochs.packing import column_size, pack_column, unpack_column
from sojourn.sketches.bucket_parameters import BucketArrayParameters
from sojourn.sketches.kinds import STACK
from sojourn.sketches.parameters import Field, Kind, Parameters

if TYPE_CHECKING:
    from sojourn.sketches.sketch import AnySketch
    from sojourn.sketches.stack import StackParameters

WIDTHS = ("bits", "count_bits", "byte_bits")
WIDEST = 64

T = TypeVar("T")


def _is_stack(parameters: Parameters) -> TypeGuard[StackParameters]:
    return parameters.kind == STACK


def _widths(parameters: Parameters) -> dict[str, int]:
    """The widths of the counters that a sketch has; those of a stack's parts behind the part's name."""
    if _is_stack(parameters):
        return {f"{part}.{name}": bits for part, p in parameters.parts for name, bits in _widths(p).items()}
    found = {name: getattr(parameters, name, 0) for name in WIDTHS}
    return {name: bits for name, bits in found.items() if bits}


def _with_widths(parameters: Parameters, widths: dict[str, int]) -> Parameters:
    if _is_stack(parameters):
        parts = tuple((part, _with_widths(p, _of(part, widths))) for part, p in parameters.parts)
        return replace(parameters, parts=parts)
    changed: Any = widths
    return replace(parameters, **changed)


def _of(part: str, widths: dict[str, int]) -> dict[str, int]:
    return {name.removeprefix(f"{part}."): bits for name, bits in widths.items() if name.startswith(f"{part}.")}


def _without_widths(parameters: Parameters) -> list[tuple[str, object]]:
    if _is_stack(parameters):
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

    def merge(widths: dict[str, int]) -> AnySketch:
        left, right = (_widened(epoch.sketch, widths) for epoch in (one, other))
        return left.merge(right)

    merged = _as_wide_as_needed(one.parameters, other.parameters, merge)
    return Epoch(one.node, one.stream, max(one.sequence, other.sequence), merged.freeze(), _all_keys(one, other), cut)


def _as_wide_as_needed(one: Parameters, other: Parameters, merge: Callable[[dict[str, int]], T]) -> T:
    """What `merge` gives for the smallest widths, of all counters together, for which it has room."""
    widths = {name: max(bits, _widths(other)[name]) for name, bits in _widths(one).items()}
    while True:
        try:
            return merge(widths)
        except SketchFullError:
            if min(widths.values(), default=WIDEST) >= WIDEST:
                raise
            widths = {name: min(WIDEST, bits + 1) for name, bits in widths.items()}


def merged_encoded(one: EncodedEpoch, other: EncodedEpoch) -> EncodedEpoch:
    """`merged_epoch` of two encoded epochs; of bucket arrays without decoding them into sketches."""
    mine, others = one.parameters, other.parameters
    is_plain = isinstance(mine, BucketArrayParameters) and isinstance(others, BucketArrayParameters)
    if not is_plain or one.cut is not None or other.cut is not None:
        return EncodedEpoch.of(merged_epoch(one.decode(), other.decode()))
    columns = list(zip(_columns(one), _columns(other), strict=True))

    def merge(widths: dict[str, int]) -> tuple[Parameters, bytes]:
        parameters = _with_widths(mine, widths)
        parameters.require_equal(_with_widths(others, widths))
        counters = parameters.tables()[0].fields
        pairs = zip(counters, columns, strict=True)
        return parameters, b"".join(pack_column(_added(field, *pair), field.bits) for field, pair in pairs)

    return _encoded_merge(one, other, *_as_wide_as_needed(mine, others, merge))


def _columns(epoch: EncodedEpoch) -> list[list[int]]:
    """The counters of a bucket array, column by column."""
    (table,) = epoch.parameters.tables()
    packed, at, found = epoch.counters(), 0, []
    for field in table.fields:
        size = column_size(table.length, field.bits)
        found.append(unpack_column(packed[at : at + size], table.length, field.bits, is_centred=field.is_centred))
        at += size
    return found


def _added(field: Field, left: list[int], right: list[int]) -> list[int]:
    together = [a + b for a, b in zip(left, right, strict=True)]
    if field.kind is not Kind.MODULAR and not field.lowest <= min(together) <= max(together) <= field.highest:
        raise SketchFullError(f"{field.name} would leave its {field.bits} bits", where="bucket_array")
    return together


def _encoded_merge(one: EncodedEpoch, other: EncodedEpoch, parameters: Parameters, counters: bytes) -> EncodedEpoch:
    firsts = [epoch.first_ns for epoch in (one, other) if epoch.first_ns is not None]
    lasts = [epoch.last_ns for epoch in (one, other) if epoch.last_ns is not None]
    first, last = min(firsts, default=None), max(lasts, default=None)
    frame = None if first is None or last is None else [first, last - first]
    sequence, recorded = max(one.sequence, other.sequence), one.recorded + other.recorded
    mine, others = one.listed(), other.listed()
    keys = None if mine is None or others is None else list(dict.fromkeys((*mine, *others)))
    about = [parameters.kind, parameters.to_mapping(), one.node, one.stream, sequence, frame, recorded]
    body = dumps([*about, counters, keys])
    data = dumps([VERSION, body, check_word(body)])
    name, times = (one.node, one.stream, sequence), (first, last, recorded)
    return EncodedEpoch(parameters, *name, *times, len(keys or ()), parameters.decoded_bytes, data)


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
    from sojourn.sketches.stack import Stack

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
