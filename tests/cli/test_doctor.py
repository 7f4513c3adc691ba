"""What the doctor says of machines that are really so: offloads, modes of files, disks, a query unit that is away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from query_unit import Unit, running_unit

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make such a machine")
PROGRAM = (sys.executable, "-m", "sojourn", "doctor", "--format", "json")
LEAST = {"version", "libraries", "capture", "privileges", "tracefs", "interfaces", "clock", "compiled code"}


class Patient:
    """A home, and what the doctor says there."""

    def __init__(self, folder: Path) -> None:
        self.configuration = folder / "config" / "sojourn"
        self.configuration.mkdir(parents=True)
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SOJOURN_")}
        places = {"XDG_CONFIG_HOME": str(self.configuration.parent), "XDG_CONFIG_DIRS": str(folder / "none")}
        self.variables = {**kept, **places, "HOME": str(folder)}

    def examined(self, *before: str, code: int | None = None) -> dict[str, dict[str, str]]:
        """Findings by what was checked, the worst of each."""
        done = subprocess.run(
            [*before, *PROGRAM], capture_output=True, text=True, cwd=self.folder, env=self.variables, check=False
        )
        assert done.stderr == ""
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["failed"] == sum(one["verdict"] == "fail" for one in found["findings"])
        assert done.returncode == bool(found["failed"])
        if code is not None:
            assert done.returncode == code, found
        order = ["ok", "warn", "fail"]
        ranked = sorted(found["findings"], key=lambda one: order.index(one["verdict"]))
        assert all(one["action"] for one in ranked if one["verdict"] == "fail" and one["check"] != "agent")
        return {one["check"]: one for one in ranked}

    def token(self, name: str, mode: int, text: str = "0123456789abcdef") -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def client(self, server: str, token: Path) -> None:
        (self.configuration / "client.toml").write_text(f'server = "{server}"\ntoken_file = "{token}"\n')

    def agent(self, *, server: str, token: Path, spool: Path) -> None:
        text = f'node = "a"\nserver = "{server}"\ntoken_file = "{token}"\nspool = "{spool}"\n'
        (self.configuration / "agent.toml").write_text(text)


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path)


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("unit") / "data")


def test_a_machine_without_configuration_is_examined_within_seconds_and_nothing_fails(patient: Patient) -> None:
    began = os.times()
    found = patient.examined(code=0)
    ended = os.times()
    assert found.keys() >= LEAST
    assert found["version"]["verdict"] == found["libraries"]["verdict"] == "ok"
    assert (ended.children_user + ended.children_system) - (began.children_user + began.children_system) < 5
    assert "numba" in found["libraries"]["what"]


def test_people_get_lines_with_what_to_do(patient: Patient) -> None:
    token = patient.token("token", 0o644)
    patient.client("http://127.0.0.1:9", token)
    done = subprocess.run(PROGRAM[:-2], capture_output=True, text=True, env=patient.variables, check=False)
    assert done.returncode == 1
    assert f"chmod o-rwx {token}" in done.stdout
    assert "127.0.0.1:9" in done.stdout


def test_a_query_unit_that_answers_is_well_and_one_that_is_away_fails(patient: Patient, unit: Unit) -> None:
    token = patient.token("token", 0o600)
    patient.client(unit.address, token)
    found = patient.examined(code=0)
    assert "answers and is well" in found["query unit"]["what"]
    patient.client(unit.nowhere, token)
    began = time.monotonic()
    assert patient.examined(code=1)["query unit"]["verdict"] == "fail"
    assert time.monotonic() - began < 60
    patient.client("http://no-such-host.invalid", token)
    assert patient.examined(code=1)["query unit"]["verdict"] == "fail"


@pytest.mark.parametrize(
    ("mode", "verdict"), [(0o600, "ok"), (0o640, "ok"), (0o660, "warn"), (0o644, "fail"), (0o602, "fail")]
)
def test_modes_of_tokens_are_looked_at(patient: Patient, unit: Unit, mode: int, verdict: str) -> None:
    token = patient.token("token", mode)
    patient.agent(server=unit.address, token=token, spool=patient.folder / "spool")
    found = patient.examined(code=int(verdict == "fail"))
    assert found["agent's token file"]["verdict"] == verdict
    assert found["agent's spool"]["verdict"] == "ok"
    assert not (patient.folder / "spool").exists()


def test_a_token_that_is_not_there_and_a_configuration_that_is_wrong_fail(patient: Patient) -> None:
    patient.agent(server="http://127.0.0.1:9", token=patient.folder / "nothing", spool=patient.folder / "spool")
    found = patient.examined(code=1)
    assert "No such file" in found["agent's token file"]["what"]
    assert found["agent"]["verdict"] == "fail"
    (patient.configuration / "serve.toml").write_text("prt = 1\n")
    assert "did you mean port?" in patient.examined(code=1)["serve"]["what"]


@needs_root
@pytest.mark.parametrize(("size", "options", "word"), [("64m", "", "free"), ("2g", "ro", "cannot be written")])
def test_a_disk_that_is_nearly_full_or_read_only_fails(
    patient: Patient, unit: Unit, size: str, options: str, word: str
) -> None:
    disk = patient.folder / "disk"
    disk.mkdir()
    words = f"size={size}" + (f",{options}" if options else "")
    patient.agent(server=unit.address, token=patient.token("token", 0o600), spool=disk / "spool")
    mount = f'mount -t tmpfs -o {words} tmpfs {disk} && exec "$@"'
    found = patient.examined("unshare", "-m", "sh", "-c", mount, "sh", code=1)
    assert found["agent's spool"]["verdict"] == "fail"
    assert word in found["agent's spool"]["what"]


@needs_root
def test_offloads_of_an_interface_are_shown_as_they_are(patient: Patient) -> None:
    """In a network name space of its own, with a pair of interfaces whose offloads are on, then off."""
    if shutil.which("ethtool") is None:
        pytest.skip("ethtool is not installed")
    pair = "ip link add t19a type veth peer name t19b; "
    off = "ethtool -K t19a gro off gso off tso off; "
    on = patient.examined("unshare", "-n", "sh", "-c", pair + 'ethtool -K t19a gro on; exec "$@"', "sh", code=0)
    assert "t19a (gro, gso, tso)" in on["interfaces"]["what"]
    none = patient.examined("unshare", "-n", "sh", "-c", pair + off + 'exec "$@"', "sh", code=0)
    assert "t19a" in none["interfaces"]["what"]
    assert "t19a (" not in none["interfaces"]["what"]


@needs_root
def test_without_root_it_says_what_needs_it(patient: Patient) -> None:
    patient.folder = Path("/")  # pytest's own folders are for one user
    patient.variables.update(HOME="/nonexistent", XDG_CONFIG_HOME="/nonexistent", XDG_CONFIG_DIRS="/nonexistent")
    found = patient.examined("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    assert found["privileges"]["verdict"] == "ok"
    assert found["capture"]["verdict"] == "warn"
    assert "CAP_NET_RAW" in found["capture"]["action"]
    packets = patient.examined(
        "setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+net_raw", "--ambient-caps=+net_raw"
    )
    assert packets["capture"]["verdict"] == "ok"
    assert "net_raw" in packets["privileges"]["what"]


def test_a_cache_that_nothing_can_be_kept_in_is_warned_of(patient: Patient) -> None:
    patient.variables["SOJOURN_CACHE_DIR"] = "/proc/nowhere"
    found = patient.examined(code=0)["compiled code"]
    assert (found["verdict"], "SOJOURN_CACHE_DIR" in found["action"]) == ("warn", True)
