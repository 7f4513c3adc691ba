"""Arguments are checked against annotations; errors at the front door name parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import pytest

from sojourn.core.arguments import check_fields, checked, front_door
from sojourn.core.errors import InputError, ParameterError, SojournError, UsageError


class Options(TypedDict, total=False):
    salt: int
    where: str


@checked
def call(
    path: str | os.PathLike[str] = "",
    *,
    way: Literal["joint", "literal"] = "joint",
    share: float = 0.5,
    count: int | None = None,
    quick: bool = False,
    names: Iterable[str] = (),
    sizes: Mapping[int, int] | None = None,
    flows: Sequence[str | int] = (),
    advance: Callable[[str], None] | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    return locals()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": None}, "call: path cannot be None; give a path"),
        ({"path": 5}, "call: path cannot be 5; give a path"),
        ({"way": "foo"}, "call: way cannot be 'foo'; choose of joint, literal"),
        ({"share": "much"}, "call: share cannot be 'much'; give a number"),
        ({"share": True}, "call: share cannot be True; give a number"),
        ({"count": 1.5}, "call: count cannot be 1.5; give a whole number or None"),
        ({"quick": 1}, "call: quick cannot be 1; give True or False"),
        ({"names": "tcp"}, "call: names cannot be 'tcp'; give a list (each a text)"),
        ({"sizes": {"a": 1}}, "call: sizes cannot be of type dict; give a mapping or None"),
        ({"flows": [1, None]}, "call: flows cannot be of type list; give a list (each a text or a whole number)"),
        ({"advance": 3}, "call: advance cannot be 3; give a function or None"),
        ({"salt": "x"}, "call: salt cannot be 'x'; give a whole number"),
        ({"shares": 1}, "call: there is no parameter shares; did you mean share?"),
        ({"path": "a" * 50, "way": "b" * 50}, f"call: way cannot be '{'b' * 40}…'; choose of joint, literal"),
    ],
)
def test_what_does_not_fit_is_named_with_what_would(given: dict, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        call(**given)
    assert str(raised.value) == message


def test_what_fits_passes_and_numpys_numbers_become_pythons() -> None:
    found = call("x", share=1, count=np.int64(3), names=iter(["a"]), flows=["a", 1], sizes={1: 2}, salt=np.uint8(4))
    assert type(found["count"]) is int
    assert type(found["options"]["salt"]) is int
    assert list(found["names"]) == ["a"]  # not used up by the check


def test_missing_and_surplus_arguments_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="too many positional arguments"):
        call("a", "b")

    @checked
    def two(first: str, second: str) -> str:
        return first + second

    with pytest.raises(UsageError, match="missing a required argument: 'second'"):
        two("a")


@front_door
def measure(memory: int = 1, reverse: bool = False, keys: bool = True, flows: int = 1, kind: str = "") -> Any:
    if kind == "os":
        raise FileNotFoundError(2, "No such file or directory", "a.pcap")
    if kind:
        raise ParameterError("--memory is small", where="--memory", action=kind)
    return locals()


@pytest.mark.parametrize(
    ("action", "worded"),
    [
        ("give --memory 1MB", "give memory 1MB"),
        ("exchange them or give --reverse", "exchange them or give reverse=True"),
        ("leave --no-keys out", "leave keys=False out"),
        ("name a --flow", "name a flows"),
        ("use `tool --unknown`", "use `tool --unknown`"),
    ],
)
def test_errors_at_the_front_door_name_parameters(action: str, worded: str) -> None:
    with pytest.raises(ParameterError) as raised:
        measure(kind=action)
    error = raised.value
    assert (error.what, error.where, error.action) == ("memory is small", "memory", worded)
    assert str(error) == f"memory: memory is small; {worded}"


def test_what_the_system_refuses_is_an_input_error_with_its_cause() -> None:
    with pytest.raises(InputError, match=r"^a\.pcap: No such file or directory$") as raised:
        measure(kind="os")
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_a_dataclass_checks_its_fields() -> None:
    @dataclass(frozen=True)
    class Point:
        name: str
        seconds: float | None = None

        def __post_init__(self) -> None:
            check_fields(self)

    assert Point("a", 3).seconds == 3
    with pytest.raises(SojournError, match="Point: name cannot be None; give a text"):
        Point(None)  # type: ignore[arg-type]
