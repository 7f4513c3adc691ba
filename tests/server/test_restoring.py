"""A query unit whose backup is restored under a running agent: it goes on, and what was lost is told to the number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from query_unit import LIMITS, running_unit

from sojourn.server.door.connections import Door
from sojourn.store.epochs import EpochStore
from sojourn.store.upkeep.backup import back_up, restore
from sojourn.store.upkeep.losses import losses
from tally_node import Node
from waiting import eventually


def stored(store: EpochStore) -> list[int]:
    return [one.sequence for one in store.epochs("alpha", "tally", 0, 2**62)]


def counted(store: EpochStore) -> int:
    return sum(int(one.sketch.column("sum").sum()) for one in store.epochs("alpha", "tally", 0, 2**62))


def test_an_agent_goes_on_after_a_backup_was_restored_and_what_is_lost_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = replace(LIMITS, batch_epochs=1000, body_bytes=16 << 20)
    running = running_unit(tmp_path / "data", limits)
    unit = next(running)
    port = int(unit.url.rsplit(":", 1)[1])
    node = Node(tmp_path, unit.url, unit.tokens["alpha"])
    node.start()
    try:
        node.count()
        eventually(lambda: counted(unit.store) == sum(node.truth.values()))
        back_up(tmp_path / "data", tmp_path / "backup")
        kept, numbers = sum(node.truth.values()), stored(unit.store)
        node.count()
        eventually(lambda: counted(unit.store) == sum(node.truth.values()))
        lost = sum(node.truth.values()) - kept
        gone = [number for number in stored(unit.store) if number not in numbers]
        next(running, None)
        node.count()  # while nobody is there: it waits in the spool
        eventually(lambda: node.spooled() > 0)
        restore(tmp_path / "backup", tmp_path / "data", replace=True)
        running = running_unit(tmp_path / "data", limits, listening=Door("127.0.0.1", port))
        unit = next(running)
        eventually(lambda: counted(unit.store) == sum(node.truth.values()) - lost)

        def told() -> bool:
            with unit.store.transaction() as connection:
                found = losses(connection).get(("alpha", "tally"), [])
            return {i for first, last in found for i in range(first, last + 1)} >= set(gone)

        eventually(told)
        assert "were acknowledged and are not stored: was a backup restored?" in caplog.text
        assert not set(gone) & set(stored(unit.store))
        node.stop()
        next(running, None)
    finally:
        node.end()
