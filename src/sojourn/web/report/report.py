"""`report`: any answer as one HTML file, to be opened from a disk or mailed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from sojourn.core.errors import UsageError
from sojourn.core.files import FilePath, unreadable
from sojourn.web.report.contents import Contents
from sojourn.web.report.page import render
from sojourn.web.report.writing import check_target, write_page

if TYPE_CHECKING:
    from sojourn.capture.flows.result import FlowTableResult
    from sojourn.mplane.station.diagnosis import Diagnosis
    from sojourn.papers.reproduction import Reproduction
    from sojourn.rtt.result import RttResult
    from sojourn.segments.result import SegmentResult
    from sojourn.tomography.result import TomographyResult

Reportable: TypeAlias = Union[
    "SegmentResult", "RttResult", "TomographyResult", "FlowTableResult", "Diagnosis", "Reproduction"
]


def report(result: Reportable, path: FilePath, *, sources: Sequence[FilePath] = ()) -> Path:
    """Write `result` as one HTML file with charts and sortable tables that needs neither a server nor a network.

    Takes what `measure`, `estimate`, `rtt`, `tomography` and `flows` give, a diagnosis, and a paper's reproduction. An
    older file of the name is replaced, in one step; what was measured, and any of `sources`, never is. Needs the
    ``web`` extra.
    """
    contents = contents_of(result, [str(source) for source in sources])
    target = check_target(path, [*contents.sources, *sources])
    try:
        write_page(target, render(contents))
    except OSError as error:
        raise unreadable(error, str(target)) from error
    return target


def contents_of(result: Reportable, sources: list[str]) -> Contents:
    """What a report of this answer says."""
    # By name, so that what was not used is not imported either.
    kind = type(result).__name__
    if kind == "SegmentResult":
        from sojourn.web.report.segments import segment_contents

        return segment_contents(result)  # type: ignore[arg-type]
    if kind in ("RttResult", "FlowTableResult"):
        from sojourn.web.report.round_trips import flow_contents, round_trip_contents

        return round_trip_contents(result) if kind == "RttResult" else flow_contents(result)  # type: ignore[arg-type]
    if kind == "TomographyResult":
        from sojourn.web.report.hops import tomography_contents

        return tomography_contents(result)  # type: ignore[arg-type]
    if kind == "Diagnosis":
        from sojourn.web.report.diagnoses import diagnosis_contents

        return diagnosis_contents(result, sources=sources)  # type: ignore[arg-type]
    if kind == "Reproduction":
        from sojourn.web.report.claims import reproduction_contents

        return reproduction_contents(result)  # type: ignore[arg-type]
    raise UsageError(
        f"there is no report of {kind}", where="report", action="give what measure, rtt or tomography gave"
    )
