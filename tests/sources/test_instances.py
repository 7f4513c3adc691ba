"""Instances are chosen by patterns on the text of their keys."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

import pytest

from sojourn.core.errors import ParameterError
from sojourn.core.keys import Key, ProcessKey, key_id, parse_key
from sojourn.sources.source import NOT_SELECTED, InstancePatterns, Metric, ReadingSource, SelectedInstances


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("mosquitto[*]", "mosquitto[812]", True),
        ("mosquitto[8]", "mosquitto[812]", False),
        ("mosquitto[81?]", "mosquitto[812]", True),
        ("mosquitto", "mosquitto[812]", False),
        ("mosq*", "mosquitto[812]", True),
        ("[a-z]*", "mosquitto[812]", False),
        ("10.0.0.*", "10.0.0.1:80 > 10.9.0.2:443 tcp", True),
        ("10.0.0.*", "10.0.1.1:80 > 10.0.0.2:443 tcp", False),
        ("* > 10.0.0.2:443 tcp", "10.0.1.1:80 > 10.0.0.2:443 tcp", True),
        ("[[]::1]*", "[::1]:80 > [::2]:443 udp", False),
        ("[::1]*", "[::1]:80 > [::2]:443 udp", True),
        ("gateway-?", "gateway-7", True),
    ],
)
def test_a_pattern_describes_the_whole_text(pattern: str, key: str, fits: bool) -> None:
    assert InstancePatterns(["nothing", pattern]).match(parse_key(key)) is fits


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    key = ProcessKey("a" * 190, 1)
    start = time.process_time()
    assert not InstancePatterns(["*a" * 200 + "b"]).match(key)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("patterns", [[], [""], ["x" * 1000], ["*"] * 101])
def test_patterns_are_bounded(patterns: list[str]) -> None:
    with pytest.raises(ParameterError):
        InstancePatterns(patterns)


class Processes(ReadingSource):
    """Three processes of fixed use, a fourth from the second poll on."""

    metric: ClassVar[Metric] = Metric("use", "ns", "process", "increments")
    polls = 0

    def read(self, now_ns: int) -> Mapping[Key, int]:  # noqa: ARG002
        self.polls += 1
        use: dict[Key, int] = {ProcessKey("sh", 1): 10, ProcessKey("dd", 2): 20, ProcessKey("dd", 3): 30}
        return use if self.polls == 1 else {**use, ProcessKey("dd", 4): 40}


def test_only_what_was_asked_for_is_given_and_the_rest_is_counted() -> None:
    with SelectedInstances(Processes(), InstancePatterns(["dd[*]"])) as source:
        first, second = source.poll(1), source.poll(2)
        assert source.metric.name == "use"
    assert [str(key) for key in first.keys] == ["dd[2]", "dd[3]"]
    assert [str(key) for key in second.keys] == ["dd[4]"]
    assert first.batch.value.tolist() == [20, 30]
    assert second.batch.instance_id.tolist() == [key_id(ProcessKey("dd", n)) for n in (2, 3, 4)]
    assert source.ignored == {NOT_SELECTED: 2}
