"""The baselines against the truth of every hop: Domo as published, and MessageTracing's order."""

from __future__ import annotations

from collections.abc import Callable

from sojourn.core.arrays import Int64Array
from sojourn.core.executors.executor import Executor
from sojourn.tomography.baselines.message_tracing import logs_of, trace_messages
from sojourn.tomography.baselines.published import PublishedOptions, published, published_bounds
from sojourn.tomography.bounds.constraints import ConstraintOptions
from sojourn.tomography.evaluation import displacement, evaluate
from sojourn.tomography.trace import CollectionTrace
from sojourn.tomography.windows import WindowOptions

__all__ = ["evaluate_baselines"]


def evaluate_baselines(
    trace: CollectionTrace,
    truth_ns: Int64Array,
    options: ConstraintOptions,
    window: WindowOptions,
    *,
    executor: Executor | None = None,
    advance: Callable[[str, float], None] | None = None,
) -> dict[str, float]:
    """Mean error and displacement as published, and the displacement of MessageTracing's order."""
    bounds = published_bounds(trace, options)
    answer = published(trace, bounds, options, PublishedOptions(window=window), executor=executor, advance=advance)
    literal = evaluate(trace, bounds, answer.arrival_ns, truth_ns)
    order = trace_messages(trace, logs_of(trace, truth_ns))
    return {
        "published_mae_ms": literal.mae_ms,
        "published_displacement": literal.displacement,
        "tracing_displacement": displacement(trace, order, truth_ns),
    }
