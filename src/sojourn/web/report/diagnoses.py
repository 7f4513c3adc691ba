"""The report of a diagnosis: which segment made a path slow or lossy, if any did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sojourn.core.units import format_duration, plural
from sojourn.web.charts.ranking import top_instances
from sojourn.web.report.contents import Column, Contents, Figure, Picture, Table

if TYPE_CHECKING:
    from sojourn.mplane.station.diagnosis import Change, Diagnosis


def diagnosis_contents(result: Diagnosis, *, sources: list[str]) -> Contents:
    """What the report of a diagnosis says."""
    return Contents(
        title=f"What changed on the path {result.path}",
        question="Did the path become slow or lossy, and which of its segments is the cause?",
        answer=f"{result.summary}.",
        figures=list(_figures(result)),
        pictures=list(_pictures(result)),
        tables=[_table(result)],
        facts={
            **({"Measurements": ", ".join(sources)} if sources else {}),
            "Compared": f"{_length(result.now)} now with {_length(result.before)} before",
            "Method": "Student's t with the autocorrelation of interval means; of losses Newcombe's interval",
        },
        trust=[
            "A segment is named when its change is significant and not below the least change of interest. All tests "
            "of one diagnosis together blame a segment at most at the asked rate where nothing changed",
            "An interval of a change holds the true change in 19 of 20 cases; one that holds 0 is no evidence of any",
        ],
        notes=result.notes,
        span_ns=(result.before.from_ns, result.now.to_ns),
        sources=sources,
    )


def _length(window: object) -> str:
    return format_duration(window.to_ns - window.from_ns)  # type: ignore[attr-defined]


def _signed(nanoseconds: float) -> str:
    return ("−" if nanoseconds < 0 else "+") + format_duration(abs(nanoseconds))


def _figures(result: Diagnosis) -> Iterator[Figure]:
    yield Figure("Verdict", str(result.verdict), is_bad=result.verdict == "changed")
    if result.cause is not None:
        share = "" if result.cause.share is None else f"{result.cause.share:.0%} of the path's change"
        yield Figure("Segment", str(result.cause.segment), share)
    if result.delay is not None:
        low, high = _signed(result.delay.low), _signed(result.delay.high)
        yield Figure("The path's delay", _signed(result.delay.value), f"95 % between {low} and {high}")


def _pictures(result: Diagnosis) -> Iterator[Picture]:
    names = [str(one.segment) for one in result.segments]
    wrong = [result.cause is not None and one.segment == result.cause.segment for one in result.segments]
    for title, unit, changes, note in (
        ("Change of delay by segment", "ns", [one.delay for one in result.segments], "Now against before."),
        ("Change of loss by segment", "share", [one.loss for one in result.segments], "Of the packets sent."),
    ):
        if any(change is not None for change in changes):
            ends = [[_of(change, name) for change in changes] for name in ("value", "low", "high")]
            drawn = top_instances(names, *ends, unit=unit, quantity="change", wrong=wrong)
            yield Picture(title, drawn, f"{note} The whisker is the change's 95 % interval.")


def _of(change: Change | None, name: str) -> float | None:
    return None if change is None else float(getattr(change, name))


def _table(result: Diagnosis) -> Table:
    some = result.segments
    columns = [
        Column("Segment", [str(one.segment) for one in some]),
        Column("Kind", [str(one.segment.kind) for one in some]),
        Column("Share of the change", [one.share for one in some], "share"),
        Column("Change of delay", [_of(one.delay, "value") for one in some], "ns"),
        Column("95 % from", [_of(one.delay, "low") for one in some], "ns"),
        Column("95 % to", [_of(one.delay, "high") for one in some], "ns"),
        Column("Change of loss", [_of(one.loss, "value") for one in some], "share"),
        Column("Silent", ["yes" if one.is_silent else "" for one in some]),
        Column("Rests on", [one.evidence for one in some]),
    ]
    kept = [column for column in columns if any(value not in (None, "") for value in column.values)]
    return Table("Segments", kept, f"{plural(len(some), 'segment')} of the path.", rows_name="segments")
