"""Image, compose file, playbook and locks: read by the tools that know their formats."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS, ANSIBLE = ROOT / "packaging" / "containers", ROOT / "packaging" / "ansible"
COMPOSE = CONTAINERS / "compose.yaml"


def tool(name: str) -> str:
    """A program of the development environment."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing and CI skips nothing")
        pytest.skip(f"{name} is not installed")
    return found


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def test_hadolint_has_nothing_to_say_of_the_image() -> None:
    done = subprocess.run([tool("hadolint"), CONTAINERS / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_image_copies_is_there() -> None:
    text = (CONTAINERS / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert len(copied) >= 6
    assert [word for word in copied if not (ROOT / word).exists()] == []


def test_the_compose_file_holds_together() -> None:
    """Its services are those promised, and all volumes, secrets, services and files that it names are there."""
    found = compose()
    services = found["services"]
    assert set(services) == {"agent-http", "agent-mqtt", "broker", "database", "unit"}
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert set(service.get("secrets", ())) <= set(found["secrets"])
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            is_made = source.startswith("./secrets/")
            assert is_made or source in found["volumes"] or (CONTAINERS / source).is_file(), source
    made = (CONTAINERS / "secrets.sh").read_text()
    for secret in found["secrets"].values():
        assert Path(secret["file"]).name in made


@pytest.mark.parametrize("name", ["agent-http", "agent-mqtt", "unit"])
def test_what_the_compose_file_starts_are_commands_that_sojourn_takes(name: str) -> None:
    from sojourn.cli.main import load_command

    service = compose()["services"][name]
    command, *words = service["command"]
    context = load_command(command).make_context(command, words, resilient_parsing=False)
    assert context.params
    known = {one for parameter in context.command.params for one in parameter.envvar or ()}
    own = [variable for variable in service.get("environment", {}) if variable.startswith("SOJOURN_")]
    assert set(own) <= known


def test_every_container_of_ours_runs_with_nothing_that_it_does_not_need() -> None:
    for name, service in compose()["services"].items():
        if service["image"].startswith("sojourn:"):
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in service["security_opt"], name


@pytest.mark.parametrize("arguments", [("ansible-playbook", "--syntax-check"), ("ansible-playbook", "--list-tasks")])
def test_the_playbook_is_one(arguments: tuple[str, ...], tmp_path: Path) -> None:
    program, *words = arguments
    variables = {**os.environ, "HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [tool(program), *words, "-i", ANSIBLE / "inventory.yaml", ANSIBLE / "site.yaml"],
        capture_output=True, text=True, env=variables, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Make a token on the query unit" in done.stdout or "--syntax-check" in words


@pytest.mark.long
def test_the_playbook_is_what_ansible_lint_wants_of_one_in_production(tmp_path: Path) -> None:
    """It is not locked with what development takes, which has no other use for what it brings."""
    program = shutil.which("ansible-lint")
    if program is None:
        pytest.skip("ansible-lint is not installed: THE PLAYBOOK IS NOT LINTED")
    playbooks = shutil.copytree(ANSIBLE, tmp_path / "ansible")
    shutil.copytree(ROOT / "packaging" / "systemd", tmp_path / "systemd")
    command = [program, "--offline", "--nocolor", "--profile", "production", "site.yaml", "install.yaml"]
    variables = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=playbooks, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Profile 'production' was required, and it passed" in done.stderr


def test_the_inventory_has_a_hundred_nodes(tmp_path: Path) -> None:
    variables = {**os.environ, "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    command = [tool("ansible"), "-i", ANSIBLE / "inventory.yaml", "nodes", "--list-hosts"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=True)
    assert "hosts (100):" in done.stdout


@pytest.mark.parametrize("name", ["build", "development", "image"])
def test_a_lock_has_a_hash_for_everything_and_names_no_index(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    assert "--index" not in text
    entries = re.split(r"\n(?=\S)", text.strip())
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry or "==" not in entry] == []


@pytest.mark.parametrize(
    ("name", "extras"),
    [("development", ("server", "tomography", "web", "dev")), ("image", ("server", "web", "postgresql", "mqtt"))],
)
def test_a_lock_fits_what_the_project_asks_for(name: str, extras: tuple[str, ...]) -> None:
    """Where this fails, requirements have changed: `sh scripts/lock` locks them anew."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    for requirement in map(Requirement, asked):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, requirement
        assert requirement.specifier.contains(version), (requirement, version)
