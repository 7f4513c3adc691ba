"""Arguments of public functions: checked against their annotations, so that a wrong one is named in words.

`checked` is for whatever is called from outside. `front_door` is for the functions of ``import sojourn``: whatever they
raise on purpose is a `SojournError`, and speaks of parameters where commands have flags.

Cost: some 50 µs for a call, and the time to look at each value of a list or mapping.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

from sojourn.core.errors import SojournError, UsageError
from sojourn.core.files import unreadable

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
# Parameters whose flag has another name.
_PARAMETERS = {"from": "capture", "flow": "flows", "parameter": "parameters"}
_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    NoneType: "None",
    os.PathLike: "a path",
}
_LONGEST_SHOWN = 40


def checked(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function; a call that does not fit its annotations is a `UsageError` that says what would."""

    @wraps(function)
    def call(*args: Parameters.args, **given: Parameters.kwargs) -> Returned:
        bound = _bind(function, args, given)
        return function(*bound.args, **bound.kwargs)

    return call


def front_door(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function as users of the package call it: errors are a `SojournError` each and name its parameters."""

    @wraps(function)
    def call(*args: Parameters.args, **given: Parameters.kwargs) -> Returned:
        try:
            return checked(function)(*args, **given)
        except SojournError as error:
            error.reword(lambda text: _FLAG.sub(lambda flag: _parameter(flag, _expected(function)), text))
            raise
        except OSError as error:
            raise unreadable(error) from error

    return call


def check_fields(record: object) -> None:
    """Refuse a dataclass's fields that are not of their types; for its ``__post_init__``."""
    kind: Any = type(record)
    for name, hint in _expected(kind).items():
        _require(getattr(record, name), hint, name=name, where=kind.__name__)


def _bind(function: Callable[..., object], args: tuple[Any, ...], given: dict[str, Any]) -> inspect.BoundArguments:
    """The arguments of a call, all of the types that they should have; numpy's numbers become Python's."""
    where, expected = function.__name__, _expected(function)
    if unknown := [name for name in given if name not in expected]:
        near = get_close_matches(unknown[0], expected, 1)
        action = f"did you mean {near[0]}?" if near else f"choose of {', '.join(expected)}"
        raise UsageError(f"there is no parameter {unknown[0]}", where=where, action=action)
    try:
        bound = inspect.signature(function).bind(*args, **given)
    except TypeError as error:
        raise UsageError(str(error), where=where) from None
    for name, value in bound.arguments.items():
        if name in expected:
            bound.arguments[name] = _require(value, expected[name], name=name, where=where)
        elif name not in ("self", "cls"):
            values = {key: _require(each, expected[key], name=key, where=where) for key, each in value.items()}
            bound.arguments[name] = values
    return bound


@cache
def _expected(called: Any) -> dict[str, Any]:
    """What each parameter of a function, or field of a dataclass, should be; those of a TypedDict one by one."""
    expected: dict[str, Any] = {}
    for name, hint in _hints(called).items():
        if get_origin(hint) is Unpack:
            expected |= _hints(get_args(hint)[0])
        elif name != "return":
            expected[name] = hint
    return expected


def _hints(annotated: Any) -> dict[str, Any]:
    """The annotations; a name that only type checkers import is one of the front door's, else anything will do."""
    names: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(annotated, localns=names)
        except NameError as error:
            missing = str(error.name)
            names[missing] = getattr(sys.modules["sojourn"], missing, object)


def _require(value: Any, hint: Any, *, name: str, where: str) -> Any:
    if not _fits(value, hint):
        raise UsageError(f"{name} cannot be {_shown(value)}", where=where, action=_wanted(hint))
    return int(value) if type(value) is not bool and isinstance(value, Integral) else value


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inner)
    if hint in (int, float):
        # True is no number to people.
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    kind = origin or hint
    if not isinstance(kind, type) or not isinstance(value, kind):
        return not isinstance(kind, type)
    if isinstance(value, Mapping) and len(inner) == 2:
        return all(_fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items())
    if kind is not str and isinstance(value, str | bytes):
        return kind is object  # a text is no list of its letters
    if isinstance(value, Collection) and len(inner) == 1 and not isinstance(value, os.PathLike):
        return all(_fits(each, inner[0]) for each in value)
    return True


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…")
    return f"of type {type(value).__name__}"


def _wanted(hint: Any) -> str:
    choices = [choice for each in _alternatives(hint) if get_origin(each) is Literal for choice in get_args(each)]
    if choices:
        return f"choose of {', '.join(map(str, choices))}"
    kinds = [_kind(each) for each in _alternatives(hint)]
    if "a path" in kinds and "a text" in kinds:
        kinds.remove("a text")
    return f"give {' or '.join(dict.fromkeys(kinds))}"


def _alternatives(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from _alternatives(each)
    else:
        yield hint


def _kind(hint: Any) -> str:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in _KINDS:
        return _KINDS[origin]
    if origin is Callable:
        return "a function"
    if issubclass(origin, Mapping):
        return "a mapping"
    if len(inner) == 1:
        return f"a list (each {' or '.join(_kind(each) for each in _alternatives(inner[0]))})"
    return f"{'an' if origin.__name__[0] in 'AEIOU' else 'a'} {origin.__name__}"


def _parameter(flag: re.Match[str], expected: Mapping[str, Any]) -> str:
    """What a function's caller writes for a command's flag."""
    name = flag[1].replace("-", "_")
    name = _PARAMETERS.get(name, name)
    if name.removeprefix("no_") in expected and name.startswith("no_"):
        return f"{name.removeprefix('no_')}=False"
    if name not in expected:
        return flag[0]
    return f"{name}=True" if expected[name] is bool else name
