"""The interface that all sources share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from sojourn.core.errors import ParameterError, SourceError
from sojourn.core.keys import Key, NodeKey, key_id
from sojourn.sources.source import Metric, ReadingSource

GATEWAY, SENSOR = NodeKey("gateway-7"), NodeKey("sensor-1")


class Scripted(ReadingSource):
    """Gives what it was told to."""

    metric: ClassVar[Metric] = Metric("scripted", "jobs", "node", "samples")

    def __init__(self, *readings: Mapping[Key, int]) -> None:
        super().__init__()
        self._readings = list(readings)
        self.closed = 0

    def read(self, now_ns: int) -> Mapping[Key, int]:  # noqa: ARG002
        return self._readings.pop(0)

    def close(self) -> None:
        self.closed += 1


def test_a_reading_becomes_rows_and_a_key_is_reported_once() -> None:
    with Scripted({GATEWAY: 4}, {GATEWAY: -5, SENSOR: 6}, {}) as source:
        first, second, third = (source.poll(time_ns) for time_ns in (100, 200, 300))
    assert first.keys == (GATEWAY,)
    assert second.keys == (SENSOR,)
    assert second.batch.instance_id.tolist() == [key_id(GATEWAY), key_id(SENSOR)]
    assert second.batch.value.tolist() == [-5, 6]
    assert second.batch.time_ns.tolist() == [200, 200]
    assert len(third) == 0
    assert third.keys == ()
    assert source.closed == 1


def test_a_source_that_cannot_open_is_closed_again() -> None:
    class Failing(Scripted):
        def open(self) -> None:
            raise SourceError("no sensor", where="failing")

    source = Failing()
    with pytest.raises(SourceError, match="failing: no sensor"), source:
        pass
    assert source.closed == 1


@pytest.mark.parametrize(
    "fields",
    [
        ("CPU", "ns", "process", "increments"),
        ("cpu", "", "process", "increments"),
        ("cpu", "ns", "thread", "increments"),
        ("cpu", "ns", "process", "deltas"),
    ],
)
def test_a_metric_is_checked_when_it_is_made(fields: tuple[str, ...]) -> None:
    with pytest.raises(ParameterError):
        Metric(*fields)  # type: ignore[arg-type]
