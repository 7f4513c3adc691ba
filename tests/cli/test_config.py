"""Configuration from files, variables and flags: which value counts, where it is from, and what is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, running_unit

from sojourn.core.host.settings import read_settings

PROGRAM = (sys.executable, "-m", "sojourn")


class Machine:
    """A user's and the machine's directories, and commands that see no others."""

    def __init__(self, folder: Path) -> None:
        self.user, self.system = folder / "home" / "sojourn", folder / "xdg" / "sojourn"
        self.folder = folder
        for directory in (self.user, self.system):
            directory.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SOJOURN_")}
        places = {"XDG_CONFIG_HOME": self.user.parent, "XDG_CONFIG_DIRS": self.system.parent}
        self.variables = {**kept, **{name: str(path) for name, path in places.items()}, "HOME": str(folder)}

    def run(self, *words: object, code: int = 0, **variables: str) -> tuple[str, str]:
        done = subprocess.run(
            [*PROGRAM, *map(str, words)],
            capture_output=True, text=True, cwd=self.folder, env={**self.variables, **variables}, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    def shown(self, section: str, **variables: str) -> dict[str, tuple[str, str]]:
        """Values and origins of a section."""
        found = json.loads(self.run("config", "show", section, "--format", "json", **variables)[0])
        return {one["setting"]: (one["value"], one["from"]) for one in found["settings"]}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_flag_counts_before_a_variable_that_before_the_users_file_that_before_the_machines(machine: Machine) -> None:
    (machine.system / "serve.toml").write_text('port = 1001\nhost = "127.0.0.2"\nkeep_epochs = "30d"\n')
    (machine.user / "serve.toml").write_text('port = 1002\nhost = "127.0.0.3"\n')
    found = machine.shown("serve", SOJOURN_SERVE_PORT="1003")
    assert found["port"] == ("1003", "$SOJOURN_SERVE_PORT")
    assert found["host"] == ("127.0.0.3", str(machine.user / "serve.toml"))
    assert found["keep_epochs"] == ("30d", str(machine.system / "serve.toml"))
    assert found["workers"] == ("0", "default")
    # The flag's word is what serve listens on: a bad one is refused by its name, whatever files say.
    _, said = machine.run("serve", "--port", "99999", code=2, SOJOURN_SERVE_PORT="1003")
    assert "--port" in said


def test_options_may_be_repeated_in_files_and_variables_and_written_with_dashes(machine: Machine) -> None:
    (machine.user / "serve.toml").write_text('merge-epochs = ["7d:1h", "30d:1d"]\nforwarded-from = "127.0.0.1"\n')
    assert machine.shown("serve")["merge_epochs"][0] == "7d:1h, 30d:1d"
    assert machine.shown("serve", SOJOURN_SERVE_FORWARDED_FROM="10.0.0.1 10.0.0.2")["forwarded_from"][0] == (
        "10.0.0.1, 10.0.0.2"
    )
    assert machine.run("config", "check", "serve")[0].startswith("serve: good, http://127.0.0.1:8080")


def test_secrets_are_not_shown(machine: Machine) -> None:
    (machine.user / "serve.toml").write_text(
        'data = "postgresql+psycopg://u:hunter2@db/x?password=hunter3"\nwebhook = "https://h.example/hunter4"\n'
        'mqtt = "mqtts://unit:hunter5@broker"\n'
    )
    (machine.user / "agent.toml").write_text('node = "a"\nserver = "http://127.0.0.1:9"\ntoken = "hunter6"\n')
    output = machine.run("config", "show")[0] + machine.run("config", "show", "client", SOJOURN_TOKEN="hunter7")[0]
    assert "hunter" not in output
    for shown in ("postgresql+psycopg://u:…@db/x", "https://h.example/…", "mqtts://unit:…@broker", "(set, not shown)"):
        assert shown in output


@pytest.mark.parametrize(
    ("section", "text", "words"),
    [
        ("serve", "prt = 3\n", ("'prt' is unknown", "did you mean port?")),
        ("serve", 'port = "many"\n', ("port", "integer")),
        ("serve", "port = [1]\n", ("port", "expected a text or a number")),
        ("serve", 'silent_after = "soon"\n', ("soon",)),
        ("serve", "port = \n", ("not TOML",)),
        ("agent", 'node = "a"\n', ("server is missing",)),
        ("agent", 'nod = "a"\n', ("'nod' is unknown",)),
        ("client", 'token = "x"\n', ("'token' is unknown",)),
        ("client", "server = 3\n", ("expected a text",)),
        ("client", 'server = "ftp://x"\n', ("ftp",)),
        ("client", 'token_file = "/nowhere"\n', ("/nowhere", "No such file")),
    ],
)
def test_what_is_wrong_is_said_in_a_line_that_names_it(
    machine: Machine, section: str, text: str, words: tuple[str, ...]
) -> None:
    (machine.user / f"{section}.toml").write_text(text)
    _, said = machine.run("config", "check", section, code=2)
    assert said.count("\n") == 1
    for word in words:
        assert word in said


def test_a_file_that_may_not_be_read_is_an_error_and_never_left_out(machine: Machine) -> None:
    (machine.user / "client.toml").mkdir()
    _, said = machine.run("config", "check", "client", code=2)
    assert str(machine.user / "client.toml") in said
    assert "cannot be read" in said


def test_an_agents_streams_of_all_files_are_joined_and_a_layers_token_replaces_one_below(machine: Machine) -> None:
    (machine.system / "agent.toml").write_text(
        'node = "a"\nserver = "http://127.0.0.1:9"\ntoken = "old"\nspool = "spool"\n[streams.cpu]\nmetric = "cpu"\n'
    )
    (machine.folder / "new").write_text("new-token\n")
    (machine.user / "agent.toml").write_text(
        f'token_file = "{machine.folder / "new"}"\n[streams.mem]\nmetric = "memory"\n'
    )
    assert machine.run("agent", "--check")[0] == "a: 2 streams, epochs go to http://127.0.0.1:9\n"
    assert machine.run("agent", "--check", SOJOURN_AGENT_NODE="b")[0].startswith("b: 2 streams")
    assert machine.run("agent", "--check", "--node", "c", SOJOURN_AGENT_NODE="b")[0].startswith("c: ")
    found = machine.shown("agent")
    assert "token" not in found
    assert {name for name in found if name.startswith("streams.")} == {"streams.cpu", "streams.mem"}
    # A file that is named stands alone.
    (machine.folder / "other.toml").write_text('node = "z"\n')
    _, said = machine.run("agent", "-c", "other.toml", "--check", code=2)
    assert "server is missing" in said


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("unit") / "data")


def test_commands_that_ask_find_the_query_unit_and_their_token_in_the_file(machine: Machine, unit: Unit) -> None:
    (machine.folder / "token").write_text(unit.tokens["viewer"])
    token = machine.folder / "token"
    (machine.user / "client.toml").write_text(f'server = "{unit.address}"\ntoken_file = "{token}"\n')
    machine.run("nodes")
    assert machine.run("config", "check")[0].startswith(f"client: good, asks {unit.address} (")


def test_a_files_token_is_presented_to_the_files_server_alone(machine: Machine, unit: Unit) -> None:
    (machine.folder / "token").write_text(unit.tokens["viewer"])
    token = machine.folder / "token"
    (machine.user / "client.toml").write_text(f'server = "https://unit.example"\ntoken_file = "{token}"\n')
    _, said = machine.run("nodes", "--server", unit.address, code=2)
    assert "a token is needed" in said
    machine.run("nodes", "--server", unit.address, "--token-file", token)
    machine.run("nodes", SOJOURN_SERVER=unit.address, SOJOURN_TOKEN=unit.tokens["viewer"])


def test_commands_beside_serve_find_its_data(machine: Machine) -> None:
    data = machine.folder / "unit-data"
    (machine.user / "serve.toml").write_text(f'data = "{data}"\n')
    machine.run("token", "create", "--role", "viewer", "-w", "viewer.token")
    assert data.is_dir()
    assert "schema" in machine.run("store", "check")[0]
    assert "viewer" in machine.run("token", "list")[0]
    other = machine.folder / "other"
    machine.run("token", "create", "--role", "viewer", "-w", "v2", SOJOURN_SERVE_DATA=str(other))
    assert other.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have an /etc of its own")
def test_the_machines_own_directory_is_the_weakest(machine: Machine) -> None:
    """In a mount name space, whose /etc/sojourn is gone with its process."""
    program = f"""
mount -t tmpfs tmpfs /etc/xdg 2>/dev/null
mkdir -p {machine.folder}/etc && mkdir -p /etc/sojourn && mount --bind {machine.folder}/etc /etc/sojourn &&
{sys.executable} -m sojourn config show serve --format json
"""
    (machine.folder / "etc").mkdir()
    (machine.folder / "etc" / "serve.toml").write_text('port = 1000\nkeep_epochs = "9d"\n')
    (machine.system / "serve.toml").write_text("port = 1001\n")
    was_there = Path("/etc/sojourn").is_dir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", program], capture_output=True, text=True, env=machine.variables, check=True
    )
    if not was_there:
        Path("/etc/sojourn").rmdir()
    found = {one["setting"]: (one["value"], one["from"]) for one in json.loads(done.stdout)["settings"]}
    assert found["port"] == ("1001", str(machine.system / "serve.toml"))
    assert found["keep_epochs"] == ("9d", "/etc/sojourn/serve.toml")


def test_relative_directories_and_a_home_that_is_none_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sojourn").mkdir()
    (tmp_path / "sojourn" / "client.toml").write_text('server = "http://attacker.example"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    monkeypatch.setenv("XDG_CONFIG_DIRS", ".:")
    assert read_settings("client").values == {}
