"""Agents with one node's name: one is accepted, the others keep what they have, and numbers are never used twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, make_epoch, running_unit
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.epochs.wire import encode
from sojourn.node.agent.configuration import instance_of
from sojourn.node.transports.http import HttpTransport
from sojourn.node.transports.transport import Announcement, NameTakenError, RefusedError
from sojourn.server.control.owners import OwnerStore, TakenError
from sojourn.store.epochs import open_store

FIRST, SECOND = "11" * 16, "22" * 16
DISK = Announcement("disk", "disk_io", "operations", "process")
SILENCE_NS = 3 * 10**8


def agent(unit: Unit, instance: str | None) -> HttpTransport:
    return HttpTransport(unit.url, unit.tokens["alpha"], node="alpha", instance=instance)


def test_a_second_agent_is_refused_while_the_first_is_there_and_nothing_of_it_is_stored(unit: Unit) -> None:
    first, second, old = agent(unit, FIRST), agent(unit, SECOND), agent(unit, None)
    assert first.announce(DISK) is None
    first.send([encode(make_epoch(0))])
    for other in (second, old):
        with pytest.raises(NameTakenError, match="sojourn nodes release alpha"):
            other.announce(DISK)
        with pytest.raises(NameTakenError):
            other.send([encode(make_epoch(1, values=(9,)))])
    for question in (lambda: second.next_question(0), second.assignments, lambda: second.report_states({})):
        with pytest.raises(NameTakenError):
            question()
    assert unit.store.totals()["epochs"] == 1
    first.send([encode(make_epoch(1))])
    assert first.announce(DISK) == 1


def test_agents_without_a_number_of_their_own_work_as_before(unit: Unit) -> None:
    old = agent(unit, None)
    assert old.announce(DISK) is None
    old.send([encode(make_epoch(0))])
    assert old.announce(DISK) == 0
    assert old.next_question(0) is None


def test_agents_with_one_name_and_different_streams_do_not_disturb_each_other(unit: Unit) -> None:
    first, second = agent(unit, FIRST), agent(unit, SECOND)
    first.announce(DISK)
    second.announce(Announcement("cpu", "cpu", "ns", "process"))
    first.send([encode(make_epoch(0))])
    second.send([encode(make_epoch(0, stream="cpu"))])
    assert unit.store.totals()["epochs"] == 2
    with pytest.raises(NameTakenError):
        second.send([encode(make_epoch(1, stream="cpu")), encode(make_epoch(1))])
    assert unit.store.totals()["epochs"] == 2, "all or none"


def test_a_released_name_goes_to_the_other_agent_and_the_numbers_of_both_stay_apart(unit: Unit) -> None:
    first, second = agent(unit, FIRST), agent(unit, SECOND)
    first.announce(DISK)
    first.send([encode(make_epoch(i)) for i in range(3)])
    result = CliRunner().invoke(
        app, ["nodes", "release", "alpha", "--server", unit.url, "--token", unit.tokens["admin"]]
    )
    assert "another agent may take over disk of alpha" in result.output
    first.send([encode(make_epoch(3))])  # the first goes on until the other comes
    last = second.announce(DISK)
    assert last is not None
    assert last > 10**15, "after all numbers that the first may have in its spool"
    assert second.announce(DISK) == last
    second.send([encode(make_epoch(last + 1))])
    with pytest.raises(NameTakenError):
        first.send([encode(make_epoch(4))])
    second.leave()
    assert first.send([encode(make_epoch(4))])[0].status == "stored"
    assert first.announce(DISK) is not None
    assert unit.store.totals()["epochs"] == 6


def test_an_agent_that_ends_leaves_its_name_to_the_next_and_takes_it_again(unit: Unit) -> None:
    first, second = agent(unit, FIRST), agent(unit, SECOND)
    first.announce(DISK)
    first.leave()
    first.announce(DISK)  # it is back before anybody else came
    with pytest.raises(NameTakenError):
        second.announce(DISK)
    first.leave()
    second.announce(DISK)
    with pytest.raises(NameTakenError):
        first.announce(DISK)


def test_a_name_is_free_after_a_silence_that_the_query_unit_could_hear(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    owners = OwnerStore(store, silence_ns=10**12)
    owners.claim("alpha", ["disk"], FIRST)
    # One that is started anew has heard of nobody yet, which is no silence.
    restarted = OwnerStore(store, silence_ns=SILENCE_NS)
    with pytest.raises(TakenError):
        restarted.claim("alpha", ["disk"], SECOND)
    time.sleep(SILENCE_NS / 1e9 + 0.1)
    floor = restarted.claim("alpha", ["disk"], SECOND)["disk"]
    assert floor is not None
    with pytest.raises(TakenError):
        restarted.claim("alpha", ["disk"], FIRST)
    store.close()


def test_a_database_of_the_version_before_opens_and_is_added_to(tmp_path: Path) -> None:
    store = open_store(tmp_path)  # the tables of epochs alone
    store.add([make_epoch(0)])
    store.close()
    running = running_unit(tmp_path, LIMITS)
    unit = next(running)
    assert agent(unit, FIRST).announce(DISK) == 0
    next(running, None)


@pytest.mark.parametrize("text", ["xyz", "AB" * 16, "1" * 65, "1 2"])
def test_a_number_of_another_form_is_refused(unit: Unit, text: str) -> None:
    with pytest.raises(RefusedError, match="422"):
        agent(unit, text).announce(DISK)


def test_an_agents_number_is_kept_with_its_spool_for_its_owner_alone(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    number = instance_of(spool)
    assert instance_of(spool) == number
    assert instance_of(tmp_path / "other") != number
    assert (spool / "agent-id").stat().st_mode & 0o777 == 0o600
    (spool / "agent-id").write_text("")
    assert len(instance_of(spool)) == 32
    assert [path.name for path in spool.iterdir()] == ["agent-id"]


def test_where_nothing_can_be_kept_a_number_holds_for_one_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert len(instance_of(tmp_path / "file" / "spool")) == 32
