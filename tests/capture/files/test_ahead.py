"""Reading ahead changes neither order nor errors, holds few batches, and ends when nobody reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sojourn.capture.files.ahead import ReadAhead
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import InputError
from waiting import PATIENCE_SECONDS, eventually


def batch(number: int) -> PacketBatch:
    return PacketBatch.of([number], [number], [number])


def numbers(reader: ReadAhead) -> list[int]:
    found = []
    while (part := reader.take()) is not None:
        found.append(int(part.flow_id[0]))
    return found


def test_batches_come_in_order_and_the_end_is_told() -> None:
    reader = ReadAhead(batch(n) for n in range(100))
    assert numbers(reader) == list(range(100))
    assert reader.has_ended


def test_an_error_is_raised_where_its_batch_is_taken() -> None:
    def broken() -> Iterator[PacketBatch]:
        yield batch(1)
        raise InputError("damaged")

    reader = ReadAhead(broken())
    assert reader.take() is not None
    with pytest.raises(InputError, match="damaged"):
        reader.take()


def test_only_a_few_batches_are_read_ahead_and_closing_ends_the_thread() -> None:
    read: list[int] = []

    def endless() -> Iterator[PacketBatch]:
        while True:
            read.append(len(read))
            yield batch(len(read))

    reader = ReadAhead(endless(), depth=3)
    eventually(lambda: len(read) >= 4, "nothing is read ahead")
    reader.close()
    assert len(read) == 4  # three wait, one found no room


def test_what_has_not_come_need_not_be_waited_for() -> None:
    may_go = threading.Event()

    def late() -> Iterator[PacketBatch]:
        assert may_go.wait(PATIENCE_SECONDS)
        yield batch(7)

    reader = ReadAhead(late())
    assert reader.take(wait=False) is None
    assert not reader.has_ended
    may_go.set()
    assert numbers(reader) == [7]
