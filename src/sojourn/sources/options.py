"""Options of sources: values of the kinds that a source's signature names, whoever wrote them.

Options come from configuration files and from query units, as TOML and JSON have them: texts, numbers, yes or no, and
lists of texts. What a signature does not say (a plug-in's may be bare) is not checked, and an option of a kind that
cannot be written there (an object) is refused.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sojourn.core.errors import ParameterError

__all__ = ["check_kinds"]

_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list of texts",
    type(None): "nothing",
}


def check_kinds(made_by: Callable[..., Any], options: Mapping[str, object], *, where: str) -> None:
    """Refuse options whose values are of another kind than the annotations of the class that takes them.

    >>> class Source:
    ...     def __init__(self, interface: str = "") -> None: ...
    >>> check_kinds(Source, {"interface": 7}, where="metric x")
    Traceback (most recent call last):
    sojourn.core.errors.ParameterError: metric x: interface is 7; give a text
    """
    kinds = _annotations(made_by)
    for name, value in options.items():
        kind = kinds.get(name, Any)
        if not _fits(value, kind):
            shown = repr(value)[:40]
            raise ParameterError(f"{name} is {shown}", where=where, action=f"give {_described(kind)}")


def _annotations(made_by: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(made_by.__init__)
    except (NameError, TypeError, AttributeError):
        return {}  # names that only a type checker knows: a plug-in's own matter


def _fits(value: object, kind: Any) -> bool:
    if kind is Any:
        return True
    origin = get_origin(kind)
    if origin is Literal:
        return any(value == word and type(value) is type(word) for word in get_args(kind))
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    known = origin or kind
    if known in (list, tuple):
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    return isinstance(known, type) and isinstance(value, known)


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_described(one) for one in get_args(kind) if one is not type(None))
    return _WORDS.get(get_origin(kind) or kind, "it in a program; it cannot be written here")
