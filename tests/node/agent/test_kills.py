"""An agent that is killed at any instant: nothing is lost beyond what its restart reports, nothing is stored twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from kill_world import KillWorld
from mosquitto_broker import Broker, mostly_http


@mostly_http
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.long)])
def test_the_store_has_all_that_was_measured_but_what_restarts_reported_as_lost(
    tmp_path: Path, kills: int, broker: Broker | None
) -> None:
    world = KillWorld(tmp_path, seed=kills, broker=broker)
    try:
        outcome = world.run(kills)
    finally:
        world.close()
    assert outcome.differences == []
    assert outcome.conflicts == []
    assert outcome.mute == [], "each start reports what was lost, or that nothing was"
    assert outcome.reported > 0
    assert outcome.measured > 0
