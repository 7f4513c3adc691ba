"""Passive, fine-grained measurement of latency, loss and resource use.

The names in ``__all__`` are the front door: they follow semantic versioning, all else is internal. Importing this costs
next to nothing; what a name needs is imported when it is first used. Functions check what they are given and raise
nothing but a `SojournError` on purpose (`core.arguments.front_door`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sojourn.capture.files.reader import open_capture as open_capture
    from sojourn.capture.flows.result import FlowTableResult as FlowTableResult
    from sojourn.capture.flows.result import flows as flows
    from sojourn.capture.packets import Interface as Interface
    from sojourn.client.query_unit import Client as Client
    from sojourn.core.errors import SojournError as SojournError
    from sojourn.core.estimates import Estimate as Estimate
    from sojourn.core.estimates import Unanswered as Unanswered
    from sojourn.rtt.result import RttResult as RttResult
    from sojourn.rtt.result import rtt as rtt
    from sojourn.segments.measure import estimate as estimate
    from sojourn.segments.measure import measure as measure
    from sojourn.segments.planning.result import plan as plan
    from sojourn.segments.record import record as record
    from sojourn.segments.result import SegmentResult as SegmentResult
    from sojourn.tomography.result import TomographyResult as TomographyResult
    from sojourn.tomography.result import tomography as tomography
    from sojourn.web.report.report import report as report

__version__ = "0.1.0"

# Where each name lives.
_HOMES = {
    "Client": "client.query_unit",
    "Estimate": "core.estimates",
    "FlowTableResult": "capture.flows.result",
    "Interface": "capture.packets",
    "RttResult": "rtt.result",
    "SegmentResult": "segments.result",
    "SojournError": "core.errors",
    "TomographyResult": "tomography.result",
    "Unanswered": "core.estimates",
    "estimate": "segments.measure",
    "flows": "capture.flows.result",
    "measure": "segments.measure",
    "open_capture": "capture.files.reader",
    "plan": "segments.planning.result",
    "record": "segments.record",
    "report": "web.report.report",
    "rtt": "rtt.result",
    "tomography": "tomography.result",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - all are texts


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sojourn' has no attribute {name!r}")
    found: object = getattr(import_module(f"sojourn.{_HOMES[name]}"), name)
    if isinstance(found, FunctionType):
        from sojourn.core.arguments import front_door

        found = front_door(found)
    globals()[name] = found
    return found


class _FrontDoor(ModuleType):
    """A package in which importing a room of a function's name (rtt, tomography) does not hide the function."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor


def __dir__() -> list[str]:
    return sorted(__all__)
