"""The node unit's epochs through a real broker: MicroPython's own umqtt on a real MicroPython, a real query unit."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, running_unit

from mosquitto_broker import Broker, running_broker

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
FOLDER = ROOT / ".venv" / "micropython"
PORT = FOLDER / "node_modules" / "@micropython" / "micropython-webassembly-pyscript"
UMQTT = FOLDER / "umqtt" / "simple.py"
SOURCE = ROOT / "src" / "sojourn" / "node" / "unit"


@pytest.fixture
def board_broker(tmp_path: Path) -> Iterator[Broker]:
    needed = {"node": shutil.which("node"), str(PORT): PORT.is_dir(), str(UMQTT): UMQTT.exists()}
    if missing := [what for what, there in needed.items() if not there]:
        reason = f"{' and '.join(missing)} missing; `make test` installs it where npm and a package index are"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}, and CI skips nothing")
        pytest.skip(reason)
    yield from running_broker(tmp_path / "broker")


def run_board(broker: Broker, directory: Path, first: int, last: int, *, rounds: int) -> dict[str, list[str]]:
    """What the program printed, by the first word of its lines."""
    settings = {"CLIENT_ID": "board", "USER": "alpha", "PASSWORD": "p", "FIRST": first, "LAST": last, "ROUNDS": rounds}
    board = directory / "board.py"
    board.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    modules = [SOURCE / "unit.py", SOURCE / "mqtt_unit.py", UMQTT, HERE / "usocket.py", board]
    command = ["node", HERE / "run_micropython.mjs", PORT, HERE / "board_program.py", *modules]
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        connection.setblocking(False)
        number = connection.fileno()
        environment = os.environ | {"DESCRIPTOR": str(number)}
        ran = subprocess.run(
            command, env=environment, pass_fds=[number], capture_output=True, text=True, timeout=300, check=False
        )
    assert ran.returncode == 0, ran.stderr[-2000:] + ran.stdout
    lines = (line.split() for line in ran.stdout.splitlines())
    return {word: rest for word, *rest in lines}


def test_a_board_keeps_its_epochs_until_a_query_unit_has_stored_them(board_broker: Broker, tmp_path: Path) -> None:
    """First nobody is there, then a query unit is; an epoch among them that is none is dropped alone."""
    alone = run_board(board_broker, tmp_path, 0, 10, rounds=1)
    assert alone["kept"] == [str(k) for k in range(8)], "the broker took them, and that counts for nothing"
    assert alone["full"] == ["9"]
    assert alone["last"] == ["unknown"]
    for unit in running_unit(tmp_path / "data", LIMITS, broker=board_broker):
        for last in ("-1", "6"):
            there = run_board(board_broker, tmp_path, 0, 7, rounds=12)
            assert there["last"] == [last]
            assert there["kept"] == []
            assert there["refused"] == ["1"]
            assert sums(unit) == [10 * (k + 1) for k in range(7)], "sent a second time, they are stored once"


def sums(unit: Unit) -> list[int]:
    return [int(epoch.sketch.column("sum").sum()) for epoch in unit.store.epochs("alpha", "disk", 0, 2**62)]
