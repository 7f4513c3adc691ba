"""`sojourn store`: checks, upgrades, copies and restores a query unit's data, and says what it did."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from query_unit import make_epoch, running_unit

from command_line import invoked
from sojourn.core.errors import StoreError, UsageError
from sojourn.store.epochs import open_store
from sojourn.store.migrations.upgrading import HEAD

EARLIER = Path(__file__).parents[2] / "store" / "earlier" / "0001.sqlite.sql"


def run(*arguments: str) -> tuple[str, str]:
    """What a command prints and says; raises what it raises."""
    result = invoked("store", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_data_of_an_earlier_sojourn_is_told_and_upgraded(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "sojourn.sqlite")
    connection.executescript(EARLIER.read_text())
    connection.close()
    here = ["--data", str(tmp_path)]
    latest = f"schema 0001; {HEAD} is the latest (sojourn serve or store upgrade upgrades it)\n"
    assert run("check", *here)[0] == latest
    assert run("check", *here)[0] == latest, "nothing was changed"
    assert run("upgrade", *here)[1] == f"sojourn: schema 0001 was upgraded to {HEAD}\n"
    assert run("upgrade", *here)[1] == f"sojourn: schema {HEAD} is up to date\n"
    assert run("check", *here)[0].splitlines() == [
        f"schema {HEAD}, the latest", "10 epochs, 845 B", "1 node", "2 instances", "1 epoch set aside",
    ]  # fmt: skip


def test_a_backup_is_made_while_the_unit_runs_and_restored(tmp_path: Path) -> None:
    data, file, again = tmp_path / "data", tmp_path / "backup", tmp_path / "again"
    running = running_unit(data)
    unit = next(running)
    unit.store.add([make_epoch(i) for i in range(3)])
    assert run("backup", str(file), "--data", str(data))[1].endswith(f" were written to {file}\n")
    next(running, None)
    assert run("restore", str(file), "--data", str(again))[1] == f"sojourn: {file} was restored to {again}\n"
    with pytest.raises(UsageError, match="there is data already; give --replace"):
        run("restore", str(file), "--data", str(again))
    run("restore", str(file), "--data", str(again), "--replace")
    lines = run("check", "--data", str(again))[0].splitlines()
    assert lines[1].startswith("3 epochs, ")
    assert lines[-1].startswith("restored from a backup at ")


def test_data_of_a_later_sojourn_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.transaction(writes=True) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0099'")
    store.close()
    for command in ("check", "upgrade"):
        with pytest.raises(StoreError, match=r"schema 0099.*upgrade this Sojourn"):
            run(command, "--data", str(tmp_path))


def test_a_clock_is_confirmed(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    assert run("confirm-clock", "--data", str(tmp_path))[1].startswith("sojourn: it is 20")


@pytest.mark.parametrize("command", [["backup", "x"], ["restore", "x"]], ids=lambda words: words[0])
def test_of_a_postgresql_its_own_tools_are_named(command: list[str]) -> None:
    with pytest.raises(UsageError, match="use pg_"):
        run(*command, "--data", "postgresql+psycopg://sojourn@/sojourn")


@pytest.mark.parametrize("command", ["check", "upgrade", "confirm-clock"])
def test_without_data_nothing_is_made(tmp_path: Path, command: str) -> None:
    with pytest.raises(UsageError, match="there is no query unit's data"):
        run(command, "--data", str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()
