"""Target over epochs: one of them (`decode`) and files of them (`read_epochs`); what is read can be used.

An epoch carries a check of its body, which a mutated one fails. Most mutations are therefore made in the body, in its
bytes or in one of its values, and the check is made right again.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import cbor2

from fuzz.target import Target, mutated, require_one_line
from sojourn.core.arrays import MeasurementBatch, PacketBatch
from sojourn.core.errors import SojournError, WireError
from sojourn.core.keys import parse_key
from sojourn.epochs.epoch import Epoch, merge_epochs
from sojourn.epochs.wire import decode, encode, hash_bytes_fast, read_epochs
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sds import SdsParameters
from sojourn.sketches.sketch import new_sketch

__all__ = ["EPOCHS"]

_EDGES = (0, 1, -1, 2, 31, 32, 63, 64, 65, 255, 2**16, 2**27, 2**28, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
_VALUES = (*_EDGES, 0.5, 1.0, float("nan"), float("inf"), True, None, "", "n", "round-robin", b"", [], {}, [0.5, 0.25])


def _run(data: bytes) -> None:
    first = _decoded(data)
    found: list[Epoch] = []
    try:
        found.extend(read_epochs(io.BytesIO(data)))
    except WireError as error:
        require_one_line(error)
        assert first is None, "a file of one good epoch is refused"
    if first is not None:
        assert found == [first], "a file and a message with the same bytes differ"
    for epoch in found:
        _use(epoch)


def _decoded(data: bytes) -> Epoch | None:
    try:
        return decode(data)
    except WireError as error:
        require_one_line(error)
        return None


def _use(epoch: Epoch) -> None:
    """What a server does with an epoch: it is stored, shown and merged."""
    again = decode(encode(epoch))
    assert again == epoch
    assert (again.first_ns, again.last_ns, again.recorded) == (epoch.first_ns, epoch.last_ns, epoch.recorded)
    assert epoch.parameters.memory_bits > 0
    assert (epoch.first_ns is None) == (epoch.recorded == 0)
    for key in epoch.keys or ():
        assert str(key)
    try:
        merged = merge_epochs([epoch, epoch])
    except SojournError as error:
        require_one_line(error)
    else:
        assert merged.recorded == 2 * epoch.recorded
        assert merged.subtract(epoch.sketch).column("sum").tolist() == epoch.sketch.column("sum").tolist()


def _sealed(body: bytes) -> bytes:
    return bytes(cbor2.dumps([1, body, hash_bytes_fast(body) & 0xFFFFFFFF]))


def _mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change the body's bytes or one of its values and seal it again; or change anything at all."""
    chance = random.Random(seed)
    try:
        outer = cbor2.loads(data)
        body = outer[1]
        items = cbor2.loads(body)
    except Exception:
        items, body = None, None
    way = chance.randrange(4)
    if way == 0 or not isinstance(body, bytes):
        return mutated(data, max_size)
    if way == 1 or not isinstance(items, list) or not items:
        return _sealed(mutated(body, max(1, max_size - 16)))[:max_size]
    if way == 2:
        return (data + _sealed(body))[:max_size]
    _change_value(items, chance)
    try:
        return _sealed(cbor2.dumps(items))[:max_size]
    except Exception:
        return mutated(data, max_size)


def _change_value(items: list[Any], chance: random.Random) -> None:
    """Another value for a field, a parameter, or bytes of a field mutated in place."""
    at = chance.randrange(len(items))
    value = items[at]
    if isinstance(value, dict) and value and chance.random() < 0.9:
        value[chance.choice([*value, "n", "m", "b", "c", "d", "R", "C", "k", "p", "salt", "wrap", "T"])] = (
            chance.choice(_VALUES) if chance.random() < 0.7 else chance.randrange(70)
        )
        _fit_counters(items)
    elif isinstance(value, bytes) and value and chance.random() < 0.8:
        items[at] = mutated(value, len(value) + 8)
        if chance.random() < 0.7:
            items[at] = items[at][: len(value)].ljust(len(value), b"\0")
    elif isinstance(value, list) and value and isinstance(value[0], bytes):
        value[chance.randrange(len(value))] = mutated(value[0], len(value[0]) + 8)
    else:
        items[at] = chance.choice(_VALUES)


def _fit_counters(items: list[Any]) -> None:
    """As many bytes of counters as the changed parameters call for, where that is told and small."""
    try:
        decode(_sealed(cbor2.dumps(items)))
    except WireError as error:
        words = error.what.rsplit(" ", 1)
        if error.where == "counters" and words[-1].isdecimal() and int(words[-1]) < 1 << 15:
            items[7] = items[7][: int(words[-1])].ljust(int(words[-1]), b"\0")
    except Exception:
        return


def _sketches() -> list[Parameters]:
    return [
        BucketArrayParameters(buckets=20, per_instance=5),
        BucketArrayParameters(buckets=7, per_instance=2, bits=64, count_bits=3, signed=True, wrap=True, salt=2**64 - 1),
        CounterVectorParameters(counters=9, per_flow=3, count_bits=5),
        CounterVectorParameters(counters=5, per_flow=2, shares=(0.75, 0.25)),
        LdaParameters(rows=4),
        LdaParameters(rows=3, shares=(0.5, 0.125), digest_bits=1),
        LdsParameters(rows=2, columns=5, spread=2),
        LdsParameters(rows=2, columns=3, shares=(1.0, 0.5), byte_bits=32, digest_bits=0),
        SdsParameters(rows=2, columns=4),
    ]


def _seeds() -> Iterator[bytes]:
    keys = tuple(parse_key(text) for text in ("p[7]", "10.0.0.1:1 > 10.0.0.2:2 tcp", "> ::/0", "node"))
    start = 1_700_000_000_000_000_000
    for number, parameters in enumerate(_sketches()):
        sketch = new_sketch(parameters)
        yield encode(Epoch("node", "empty", number, sketch))
        is_packets = parameters.kind in ("lda", "lds", "counter_vector")
        make = PacketBatch.of if is_packets else MeasurementBatch.of
        columns = ([1, 2, 3], [4, 5, 6], [start, start + 5, start + 9])
        sketch.record_batch(make(*columns))
        yield encode(Epoch("node", "stream", number, sketch, keys if number % 2 else None))


EPOCHS = Target("epochs", _run, _seeds, _mutate)
