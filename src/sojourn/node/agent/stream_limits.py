"""Whether a stream can be recorded, as far as that can be known before it is opened: kinds, ranges, options, memory.

The query unit asks it of what it assigns, and the agent of what it is assigned and of its own configuration, so that
both refuse the same, in the same words. What depends on the machine (an interface, a plug-in) shows when a stream is
opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.core.units import format_bytes
from sojourn.node.agent.configuration import DEFAULT_LIMITS, PLANNED, StreamConfiguration, stream_of
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.stack import StackParameters
from sojourn.sources.instances import InstancePatterns, SelectedInstances
from sojourn.sources.registry import AnySource, is_own, new_source

# Of a stream there are at once two open epochs, one more while the oldest closes, and a copy that is written down.
SKETCHES_AT_ONCE = 4
COUNTER_BYTES = 8


def sketch_bytes(parameters: Parameters) -> int:
    """The memory of all sketches that a stream has at once; a counter takes 8 bytes there, whatever its width."""
    counters = sum(table.length * len(table.fields) for table in parameters.tables())
    return SKETCHES_AT_ONCE * COUNTER_BYTES * counters


def checked_stream(
    name: str, table: Mapping[str, Any], *, where: str, most_bytes: int = DEFAULT_LIMITS.per_stream
) -> StreamConfiguration:
    """A stream from its table, checked as far as that is possible anywhere; a `UsageError` says what is wrong.

    The options of a plug-in are its own matter, and it may be installed only on the node.
    """
    try:
        configuration = stream_of(name, table, where=where)
        if is_own(configuration.metric):
            checked_source(configuration, most_bytes=most_bytes)
        else:
            _check_memory(configuration, 0, most_bytes)
            _patterns(configuration)
    except SojournError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UsageError(f"cannot be read ({error})"[:200], where=f"{where}, stream {name[:40]}") from None
    return configuration


def checked_source(configuration: StreamConfiguration, *, most_bytes: int) -> tuple[AnySource, int]:
    """A stream's source, not yet opened, and the memory that the stream may come to take."""
    # Before anything is made: it may be large.
    _check_memory(configuration, 0, most_bytes)
    patterns = _patterns(configuration)
    source = _source_of(configuration)
    if patterns is not None:
        source = SelectedInstances(source, patterns)
    return source, _check_memory(configuration, source.memory_bytes, most_bytes)


def _check_memory(configuration: StreamConfiguration, source_bytes: int, most_bytes: int) -> int:
    needed = sketch_bytes(configuration.parameters) + source_bytes
    if needed > most_bytes:
        raise UsageError(
            f"it may take {format_bytes(needed)} of memory, the limit is {format_bytes(most_bytes)}",
            where=f"stream {configuration.name}",
            action="use a smaller sketch or table, or raise stream_memory in the agent's configuration",
        )
    return needed


def _patterns(configuration: StreamConfiguration) -> InstancePatterns | None:
    return InstancePatterns(configuration.instances) if configuration.instances else None


def _source_of(configuration: StreamConfiguration) -> AnySource:
    """The stream's source; what is no parameter of the sketch has to be an option of the metric."""
    try:
        return new_source(configuration.metric, **configuration.options)
    except ParameterError as error:
        where = f"stream {configuration.name}{', ' if error.where else ''}{error.where}"
        planned = isinstance(configuration.parameters, StackParameters)
        names = ", ".join(sorted(PLANNED if planned else (f.name for f in fields(configuration.parameters))))
        action = error.action
        if configuration.options:
            action = f"{action}; the sketch's parameters are {names}"
        raise UsageError(error.what, where=where, action=action) from None
