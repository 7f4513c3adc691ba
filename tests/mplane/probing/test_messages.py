"""Messages of probing: what is packed comes back, what is damaged is refused, and no answer outgrows its request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sojourn.core.errors import WireError
from sojourn.mplane.probing.messages import (
    FETCH_STAMPS,
    HEADER_BYTES,
    MAX_MESSAGE,
    MAX_PROBES,
    Flaw,
    Kind,
    Message,
    Report,
    pack,
    pack_report,
    report_bytes,
    unpack,
    unpack_report,
)

WORD = some.integers(0, 2**64 - 1)
PART = some.integers(0, 2**32 - 1)
MESSAGES = some.builds(
    Message,
    some.sampled_from([kind for kind in Kind if kind is not Kind.REPORT]),
    WORD,
    WORD,
    PART,
    some.integers(0, MAX_PROBES),
    some.integers(HEADER_BYTES, MAX_MESSAGE),
)
REPORTS = some.builds(
    Report,
    WORD,
    WORD,
    some.integers(0, 2**20),
    some.sampled_from([Flaw.NONE, Flaw.START_LOST, Flaw.END_LOST, Flaw.UNKNOWN]),
    some.integers(0, 2**16 - 1),
    some.integers(0, 2**16 - 1),
    some.lists(some.integers(0, 2**63 - 1), max_size=FETCH_STAMPS).map(tuple),
)


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    data = pack(message)
    assert unpack(data) == message
    assert len(data) == message.size


@given(REPORTS)
def test_a_report_comes_back_as_it_was_and_has_the_length_foretold(report: Report) -> None:
    data = pack_report(report)
    assert unpack_report(data) == report
    assert len(data) == report_bytes(len(report.stamps)) <= MAX_MESSAGE


@given(some.binary(max_size=2 * MAX_MESSAGE))
def test_other_bytes_are_no_message(data: bytes) -> None:
    for read in (unpack, unpack_report):
        with pytest.raises(WireError):
            read(data)


@given(REPORTS, some.data())
def test_a_damaged_report_is_refused_or_still_well_formed(report: Report, data: some.DataObject) -> None:
    damaged = bytearray(pack_report(report))
    place = data.draw(some.integers(0, len(damaged) - 1))
    damaged[place] ^= 1 << data.draw(some.integers(0, 7))
    cut = bytes(damaged[: data.draw(some.integers(0, len(damaged)))])
    for given_bytes in (bytes(damaged), cut):
        try:
            read = unpack_report(given_bytes)
        except WireError:
            continue
        assert len(given_bytes) == report_bytes(len(read.stamps))
