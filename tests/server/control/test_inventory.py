"""The inventory, on either database: who was heard of, who is silent, and that of each silence there is one event."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from query_unit import make_epoch

from sojourn.server.control.inventory import ENDED_TEXT, SILENT_TEXT, InventoryStore
from sojourn.server.control.models import AgentReport
from sojourn.server.control.owners import OwnerStore
from sojourn.server.control.silence import SilenceWatch
from sojourn.server.door.limits import Limits
from sojourn.store.epochs import EpochStore, StreamRecord, open_store
from sojourn.store.notifications import NotificationStore

SECOND, MINUTE, HOUR = 10**9, 60 * 10**9, 3_600 * 10**9
BEGIN = 4_000_000_000 * 10**9  # later than any clock that a test runs by
HOOK = "http://127.0.0.1:9/hook"


class World:
    """A store whose time is simulated; the machine's own count passes as that does, but for steps."""

    def __init__(self, store: EpochStore, *, minutes: int = 5) -> None:
        self.store = store
        self.inventory = InventoryStore(store)
        self.now_ns = BEGIN
        self.watch = SilenceWatch(self.inventory, Limits(silent_after_ns=minutes * MINUTE, webhook=HOOK))
        self._count_ns = 0
        self.look()

    def hear(self, node: str = "alpha", sequence: int = 0) -> None:
        self.store.add([make_epoch(sequence, node=node)], now_ns=self.now_ns)

    def pass_time(self, duration_ns: int) -> None:
        """Time passes, and the watch looks every minute."""
        end_ns = self.now_ns + duration_ns
        while self.now_ns < end_ns:
            step_ns = min(MINUTE, end_ns - self.now_ns)
            self.now_ns += step_ns
            self._count_ns += step_ns
            self.look()

    def look(self) -> None:
        self.watch.look(self.now_ns, self._count_ns)

    def open(self) -> list[str]:
        return sorted(self.inventory.open_events())


@pytest.fixture
def store(place: str) -> Iterator[EpochStore]:
    with closing(open_store(place)) as opened:
        yield opened


@pytest.fixture
def world(store: EpochStore) -> World:
    return World(store)


def report(world: World, **what: object) -> AgentReport:
    known = {"version": "0.1.0", "system": "Linux", "started_ns": BEGIN, "time_ns": world.now_ns}
    spool = {"spool_epochs": 0, "spool_bytes": 0, "spool_limit_bytes": 1 << 20}
    return AgentReport.model_validate({**known, **spool, **what})


def test_a_silent_node_is_an_event_that_ends_when_it_is_back(world: World) -> None:
    world.hear("alpha")
    world.hear("beta")
    world.pass_time(4 * MINUTE)
    world.hear("beta", 1)
    assert world.open() == []
    world.pass_time(2 * MINUTE)
    assert world.open() == ["alpha"]
    (event,) = world.inventory.events()
    assert (event.since_ns, event.reason, event.cleared_ns) == (BEGIN, SILENT_TEXT, None)
    world.pass_time(MINUTE)
    assert len(world.inventory.events()) == 1, "raised once"
    world.hear("alpha", 1)
    world.look()
    assert world.open() == []
    assert world.inventory.events()[0].cleared_ns == world.now_ns
    assert NotificationStore(world.store).waiting() == 2
    bodies = [one.body for one in NotificationStore(world.store).due(world.now_ns, limit=9)]
    assert ['"event": "raised"' in body for body in bodies] == [True, False]


def test_a_report_is_a_sign_of_life_and_tells_how_far_a_clock_is_off(world: World) -> None:
    world.hear("alpha")
    world.pass_time(4 * MINUTE)
    world.inventory.take_report("alpha", report(world, time_ns=world.now_ns + 24 * HOUR), now_ns=world.now_ns)
    world.pass_time(4 * MINUTE)
    assert world.open() == []
    assert world.inventory.reports()["alpha"]["ahead_ns"] == 24 * HOUR
    world.inventory.take_report("alpha", report(world, spool_epochs=7), now_ns=world.now_ns)
    told = world.inventory.reports()["alpha"]
    assert (told["ahead_ns"], told["spool_epochs"]) == (0, 7)


def test_a_node_may_be_silent_as_long_as_its_own_setting_says(world: World) -> None:
    for name in ("alpha", "beta", "gamma"):
        world.hear(name)
    world.inventory.set_settings("alpha", {"silent_after_ns": 2 * MINUTE})
    world.inventory.set_settings("beta", {"silent_after_ns": 0})
    world.pass_time(3 * MINUTE)
    assert world.open() == ["alpha"]
    world.pass_time(3 * MINUTE)
    assert world.open() == ["alpha", "gamma"]
    world.inventory.set_settings("gamma", {"silent_after_ns": 0})
    world.look()
    assert world.open() == ["alpha"], "what may be silent for ever is no event any more"
    world.inventory.set_settings("beta", {"silent_after_ns": None})
    world.look()
    assert world.open() == ["alpha", "beta"]
    assert world.inventory.settings("beta").silent_after_ns is None


def test_a_node_without_an_agent_is_silent_when_its_usual_pause_is_long_over(world: World) -> None:
    world.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"), now_ns=BEGIN)
    for number in range(4):
        world.hear("alpha", number)
        world.pass_time(20 * MINUTE)
    assert world.open() == []
    world.pass_time(39 * MINUTE)
    assert world.open() == []
    world.pass_time(2 * MINUTE)
    assert world.open() == ["alpha"]


def test_an_agent_that_ended_in_order_is_told_apart(world: World) -> None:
    owners = OwnerStore(world.store, silence_ns=MINUTE)
    owners.claim("alpha", ["disk"], "a" * 16)
    owners.leave("alpha", "a" * 16)
    world.hear("alpha")
    assert world.inventory.presences()["alpha"].has_ended
    world.pass_time(6 * MINUTE)
    assert world.inventory.events()[0].reason == ENDED_TEXT


@pytest.mark.parametrize("step_ns", [24 * HOUR, -24 * HOUR])
def test_a_clock_that_is_set_makes_no_node_silent(world: World, step_ns: int) -> None:
    """Nobody could be heard of by that clock before; from then on everybody has as long as always."""
    world.hear("alpha")
    world.now_ns += step_ns
    world.look()
    assert world.open() == []
    world.pass_time(3 * MINUTE)
    world.hear("alpha", 1)
    world.pass_time(4 * MINUTE)
    assert world.open() == []
    if step_ns > 0:
        world.pass_time(2 * MINUTE)
        assert world.open() == ["alpha"]


def test_a_silent_node_is_back_whatever_the_clock_was_set_to(world: World) -> None:
    world.hear("alpha")
    world.pass_time(6 * MINUTE)
    assert world.open() == ["alpha"]
    world.now_ns -= 24 * HOUR
    world.look()
    assert world.open() == ["alpha"]
    world.hear("alpha", 1)
    world.look()
    assert world.open() == []
    world.pass_time(2 * MINUTE)
    assert world.open() == [], "it is raised by times of one clock"


def test_a_node_that_falls_silent_as_the_clock_is_set_back_is_noticed(world: World) -> None:
    world.hear("alpha")
    world.pass_time(MINUTE)
    world.now_ns -= 24 * HOUR
    world.look()
    world.pass_time(4 * MINUTE)
    assert world.open() == []
    world.pass_time(2 * MINUTE)
    assert world.open() == ["alpha"]


def test_a_query_unit_that_was_away_hears_everybody_first(world: World) -> None:
    world.hear("alpha")
    later = World(world.store)
    later.now_ns += 5 * HOUR
    later.watch._began_ns = later.now_ns  # it starts now
    later.look()
    assert later.open() == []
    later.pass_time(6 * MINUTE)
    assert later.open() == ["alpha"]


def test_two_query_units_raise_and_clear_a_silence_once(world: World) -> None:
    world.hear("alpha")
    world.now_ns += HOUR
    presence = world.inventory.presences()["alpha"]
    both: list[object] = []

    def meanwhile(change) -> None:
        begin = threading.Barrier(2)

        def one() -> None:
            begin.wait()
            both.append(change())

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    meanwhile(lambda: world.inventory.raise_silent(presence, webhook=HOOK, now_ns=world.now_ns))
    assert sum(event is not None for event in both) == 1
    both.clear()
    meanwhile(lambda: world.inventory.clear_silent("alpha", webhook=HOOK, now_ns=world.now_ns))
    assert sum(event is not None for event in both) == 1
    assert len(world.inventory.events()) == 1
    assert NotificationStore(world.store).waiting() == 2


def test_old_events_are_forgotten_with_what_was_told_of_them(world: World) -> None:
    world.hear("alpha")
    world.pass_time(6 * MINUTE)
    assert world.inventory.remove_some_before(world.now_ns + HOUR, limit=9) == 0, "it is open"
    world.hear("alpha", 1)
    world.look()
    assert world.inventory.remove_some_before(world.now_ns, limit=9) == 0
    assert world.inventory.remove_some_before(world.now_ns + 1, limit=9) == 1
    assert NotificationStore(world.store).waiting() == 0
