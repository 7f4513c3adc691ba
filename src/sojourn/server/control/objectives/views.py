"""Objectives as they are shown: how each fares, what it is judged at, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sojourn.objectives.objective import Objective, describe, table_of
from sojourn.server.control.notifying import receiver_of
from sojourn.server.control.objectives.assigning import ObjectiveControl
from sojourn.server.control.objectives.models import ObjectiveDetail, ObjectiveInfo, ObjectivePlace, WorstInstance
from sojourn.server.control.states import StreamStateStore
from sojourn.store.epochs import EpochStore
from sojourn.store.objectives import ObjectiveStream, Progress, StoredObjective, worst_state

_COUNTS = ("instances", "met", "violated", "undecided")
NOT_MEASURED = "nothing was measured yet"


class ObjectiveViews:
    """What is shown of a store's objectives; `trouble` tells why one could not be judged."""

    def __init__(
        self,
        store: EpochStore,
        control: ObjectiveControl,
        states: StreamStateStore,
        trouble: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._store, self._control, self._states, self._trouble = store, control, states, trouble

    def rows(self) -> list[ObjectiveInfo]:
        """All objectives, by name."""
        counts = self._control.objectives.open_counts()
        return [ObjectiveInfo(**self._fields(one, counts)[0]) for one in self._control.objectives.all()]

    def detail(self, stored: StoredObjective) -> ObjectiveDetail:
        """All about one objective."""
        fields, places = self._fields(stored, self._control.objectives.open_counts())
        definition = table_of(stored.objective)
        if stored.objective.webhook is not None:
            definition["webhook"] = receiver_of(stored.objective.webhook)
        return ObjectiveDetail(**fields, definition=definition, judged_at=places)

    def _fields(
        self, stored: StoredObjective, open_counts: Mapping[str, int]
    ) -> tuple[dict[str, Any], list[ObjectivePlace]]:
        objective = stored.objective
        places = self._places(objective)
        count = open_counts.get(objective.name, 0)
        reasons = [self._trouble(objective.name), *(place.reason for place in places)]
        if not places:
            reasons.append(NOT_MEASURED if objective.subject != "metric" else "no node of it is known")
        fields = {
            "name": objective.name,
            "subject": describe(objective),
            "require": [str(condition) for condition in objective.require],
            "every_ns": objective.every_ns,
            "error": objective.error,
            "false_alarms": objective.false_alarms,
            # What was raised stays so until an interval says otherwise.
            "state": "violated" if count else _state(place.state for place in places),
            "open_violations": count,
            "places": len(places),
            "epoch_bytes": sum(place.epoch_bytes or 0 for place in places if place.own),
            "created_ns": stored.created_ns,
            "webhook": None if objective.webhook is None else receiver_of(objective.webhook),
            "reason": next(filter(None, reasons), None),
        }
        return fields, places

    def _places(self, objective: Objective) -> list[ObjectivePlace]:
        progress = self._control.objectives.progress(objective.name)
        if objective.subject != "metric":
            return [_place(name, progress[name]) for name in sorted(progress)]
        failed = self._states.failed()
        found = []
        for row in self._control.objectives.streams(objective.name):
            name = f"{row.node}/{row.stream}" if row.stream is not None else row.node
            fault = failed.get(row.node, {}).get(row.stream or "", row.reason)
            found.append(_place(name, progress.get(name), replace(row, reason=fault), self._last_bytes(row)))
        return found

    def _last_bytes(self, row: ObjectiveStream) -> int | None:
        frames = [] if row.stream is None else self._store.frames(row.node, row.stream, limit=1)
        return int(frames[0]["size_bytes"] or 0) if frames else None


def _state(states: Iterable[str]) -> str:
    """As the worst of the places: one that was violated and is not any more has no open violation."""
    return worst_state(state if state != "violated" else "undecided" for state in states)


def _place(
    name: str, progress: Progress | None, row: ObjectiveStream | None = None, epoch_bytes: int | None = None
) -> ObjectivePlace:
    summary = {} if progress is None else dict(progress.summary)
    reason = row.reason if row is not None else None
    if reason is None:
        reason = summary.get("reason") if progress is not None else NOT_MEASURED
    numbers: dict[str, Any] = {count: int(summary.get(count, 0)) for count in _COUNTS}
    if row is not None:
        numbers |= {"stream": row.stream, "own": row.own, "planned": row.planned if row.own else None}
        numbers["buckets"] = (row.configuration or {}).get("buckets")
        numbers["epoch_bytes"] = epoch_bytes
    return ObjectivePlace(
        place=name,
        state=progress.state if progress is not None else "undecided",  # type: ignore[arg-type]
        judged_ns=None if progress is None else progress.judged_ns,
        until_ns=None if progress is None else progress.until_ns,
        worst=[WorstInstance.model_validate(one) for one in summary.get("worst", ())],
        reason=reason,
        **numbers,
    )
