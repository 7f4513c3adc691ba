"""Takes a command's plain values as they stand, without the machinery that converts the others.

Typer converts every parameter, given or not, by a schema of its own whose library takes longer to load than a small
capture takes to measure (and more memory than an agent needs). A default needs none, nor does text that is wanted as
text, as one of some words or as a path (which a command opens, and says itself why it cannot), nor a switch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from typer.core import TyperCommand, TyperGroup


class QuickCommand(TyperCommand):
    """A command that takes plain values as they stand."""

    def get_params(self, context: Any) -> list[Any]:
        return _taking_plain_values(super().get_params(context), self.callback)


class QuickGroup(TyperGroup):
    """A group of commands whose own options take plain values as they stand."""

    def get_params(self, context: Any) -> list[Any]:
        return _taking_plain_values(super().get_params(context), self.callback)


def _taking_plain_values(parameters: list[Any], command: Callable[..., Any] | None) -> list[Any]:
    kinds = get_type_hints(command) if command else {}
    for parameter in parameters:
        if "process_value" not in vars(parameter):
            parameter.process_value = _processing(parameter, _without_none(kinds.get(parameter.name)))
    return parameters


def _without_none(kind: Any) -> Any:
    """What is wanted where anything is given.

    >>> _without_none(str | None)
    <class 'str'>
    """
    others = [one for one in get_args(kind) if one is not NoneType]
    return others[0] if get_origin(kind) in (Union, UnionType) and len(others) == 1 else kind


def _processing(parameter: Any, kind: Any) -> Callable[[Any, Any], Any]:
    """Click's `process_value` of one parameter: plain values at once, all others as before."""
    convert = parameter.process_value
    takes_many = parameter.nargs != 1 or getattr(parameter, "multiple", False)

    def process(context: Any, value: Any) -> Any:
        is_plain = _are_plain(value, kind) if takes_many else _is_plain(value, kind, parameter)
        if not is_plain or (parameter.required and not value):
            return convert(context, value)
        plain = list(value or ()) if takes_many else Path(value) if kind is Path and type(value) is str else value
        return plain if parameter.callback is None else parameter.callback(context, parameter, plain)

    return process


def _is_plain(value: Any, kind: Any, parameter: Any) -> bool:
    if value is parameter.default or value is None:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return type(value) is (str if kind is Path else kind) and kind in (str, bool, Path)


def _are_plain(values: Any, kind: Any) -> bool:
    return not values or (kind == list[str] and all(type(one) is str for one in values))
