"""All metrics by their names: those here, and what installed packages bring (entry points ``sojourn.sources``).

A package offers a metric by an entry point whose name is the metric's and whose value is a class of `Source`::

    [project.entry-points."sojourn.sources"]
    load = "my_package:LoadAverage"

Nothing is imported before a metric is asked for. The metrics here keep their names: a plug-in cannot replace one. What
is wrong with a plug-in is one line that names it, never a traceback.

Options come from configuration files and from query units, as TOML and JSON have them: texts, numbers, yes or no, and
lists of texts. They are checked against the annotations of the source's signature; what a signature does not annotate
is not checked, and an option of a kind that cannot be written there (an object) is refused.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from sojourn.core.errors import ParameterError, SojournError, SourceError
from sojourn.sources.source import Metric, Source, Values

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
            raise ParameterError(f"{name} is {shown}", where=where, action=f"give {_kind_text(kind)}")


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


def _kind_text(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_kind_text(one) for one in get_args(kind) if one is not type(None))
    return _WORDS.get(get_origin(kind) or kind, "it in a program; it cannot be written here")


GROUP = "sojourn.sources"
AnySource: TypeAlias = Source[Any]
_OWN = {
    "cpu": "sojourn.sources.processes:CpuTime",
    "disk_io": "sojourn.sources.disk_io:DiskIo",
    "flow_bytes": "sojourn.sources.traffic:FlowBytes",
    "flow_packets": "sojourn.sources.traffic:FlowPackets",
    "memory": "sojourn.sources.processes:ResidentMemory",
    "packets": "sojourn.sources.traffic:InterfacePackets",
    "rtt": "sojourn.sources.traffic:FlowRtt",
}


def is_own(name: str) -> bool:
    """Whether a metric is one of those here, which are the same on every machine."""
    return name in _OWN


def captures(name: str) -> bool:
    """Whether a metric is measured on packets of an interface, which takes CAP_NET_RAW.

    >>> captures("rtt"), captures("cpu")
    (True, False)
    """
    return _OWN.get(name, "").startswith("sojourn.sources.traffic:")


def metric_names() -> list[str]:
    """All metrics that can be asked for, in alphabetical order."""
    return sorted({*_OWN, *(point.name for point in entry_points(group=GROUP))})


def source_type(name: str) -> type[AnySource]:
    """The class that measures a metric."""
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        own: type[AnySource] = getattr(import_module(module), attribute)
        return own
    points = sorted(set(entry_points(group=GROUP, name=name)), key=_described)
    if not points:
        raise ParameterError(
            f"{name[:40]!r} is no metric", action=f"use one of {', '.join(metric_names())}, or install its plug-in"
        )
    if len(points) > 1:
        raise SourceError(
            f"several plug-ins measure it: {', '.join(map(_described, points))}",
            where=f"metric {name}",
            action="uninstall all but one",
        )
    return _loaded(points[0])


def values_of(name: str) -> Values:
    """What a metric's values are, as far as this machine knows: increments if it does not."""
    return source_type(name).metric.values if is_own(name) else "increments"


def new_source(name: str, **options: Any) -> AnySource:
    """A source of a metric, not yet opened; which options it takes is its own matter.

    >>> new_source("cpu").metric.unit
    'ns'
    """
    kind = source_type(name)
    signature = inspect.signature(kind)
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise ParameterError(f"{error}", where=f"metric {name}", action=f"its options are: {takes}") from None
    check_kinds(kind, options, where=f"metric {name}")
    if name in _OWN:
        return kind(**options)
    try:
        return kind(**options)
    except SojournError:
        raise
    except Exception as error:
        raise _broken(name, kind.__module__, f"cannot be made: {_line(error)}") from error


def _loaded(point: EntryPoint) -> type[AnySource]:
    where = _described(point)
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:
        raise _broken(point.name, where, f"cannot be loaded: {_line(error)}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Source)):
        raise _broken(point.name, where, "is no class of sojourn.sources.source.Source")
    if inspect.isabstract(loaded):
        missing = ", ".join(sorted(loaded.__abstractmethods__))
        raise _broken(point.name, where, f"does not say how to {missing}")
    metric = getattr(loaded, "metric", None)
    if not isinstance(metric, Metric) or metric.name != point.name:
        named = metric.name if isinstance(metric, Metric) else None
        raise _broken(point.name, where, f"has the metric {named!r}, its entry point {point.name!r}")
    return loaded


def _described(point: EntryPoint) -> str:
    package = f"{point.dist.name} {point.dist.version}, " if point.dist is not None else ""
    return f"{package}{point.value}"


def _broken(name: str, where: str, what: str) -> SourceError:
    return SourceError(what, where=f"plug-in of metric {name} ({where})", action="mend or uninstall that package")


def _line(error: BaseException) -> str:
    """An error in one line, with its kind."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
