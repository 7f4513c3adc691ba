"""The unit files: good in systemd's own eyes, and exposing little; what stands beside them can be read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from sojourn.node.agent.configuration import configuration_of

SYSTEMD = Path(__file__).resolve().parents[2] / "packaging" / "systemd"
# Exposure as `systemd-analyze security` counts it: 0 can do nothing, 10 everything. "OK" begins below 5.
MOST_EXPOSURE = {"sojourn-serve": 1.5, "sojourn-agent": 2.5}


def analyze(*words: object) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("systemd-analyze is missing and CI skips nothing")
        pytest.skip("systemd is not installed")
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with a program that is there, as `verify` looks for it."""
    program = shutil.which("true")
    for unit in SYSTEMD.glob("*.service"):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/sojourn/bin/sojourn", str(program)))
    return tmp_path


@pytest.mark.parametrize("name", sorted(MOST_EXPOSURE))
def test_a_unit_is_good_and_exposes_little(units: Path, name: str) -> None:
    verified = analyze("verify", "--man=no", units / f"{name}.service")
    assert (verified.returncode, verified.stderr) == (0, "")
    done = analyze("security", "--offline=yes", "--threshold=100", units / f"{name}.service")
    (exposure,) = re.findall(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert float(exposure) <= MOST_EXPOSURE[name]
    text = (SYSTEMD / f"{name}.service").read_text()
    assert "Type=notify" in text
    assert "WatchdogSec=" in text


def test_a_setting_that_systemd_does_not_know_is_found(units: Path) -> None:
    unit = units / "sojourn-serve.service"
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSistem=strict"))
    assert "ProtectSistem" in analyze("verify", "--man=no", unit).stderr


def test_the_drop_in_for_tracing_disks_starts_as_root_with_few_capabilities(units: Path) -> None:
    folder = units / "sojourn-agent.service.d"
    folder.mkdir()
    drop_in = (SYSTEMD / "sojourn-agent.service.d" / "disk-io.conf.example").read_text()
    (folder / "disk-io.conf").write_text(drop_in.replace("/opt/sojourn/bin/sojourn", str(shutil.which("true"))))
    verified = analyze("verify", "--man=no", units / "sojourn-agent.service")
    assert (verified.returncode, verified.stderr) == (0, "")
    (kept,) = re.findall(r"^CapabilityBoundingSet=(.+)$", drop_in, re.MULTILINE)
    needed = {"CAP_NET_RAW", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_CHOWN", "CAP_DAC_OVERRIDE"}
    assert set(kept.split()) == needed


def test_the_examples_of_settings_are_good(tmp_path: Path) -> None:
    tables = tomllib.loads((SYSTEMD / "agent.toml").read_text())
    (tmp_path / "token").write_text("0123456789abcdef\n")
    settled = configuration_of({**tables, "token_file": str(tmp_path / "token")}, where="agent.toml")
    assert [stream.name for stream in settled.streams] == ["cpu"]
    assert settled.spool == Path("/var/lib/sojourn-agent")
    assert tomllib.loads((SYSTEMD / "serve.toml").read_text())["data"] == "/var/lib/sojourn-serve"


@pytest.mark.parametrize(("tool", "file"), [("sysusers", "sojourn.sysusers"), ("tmpfiles", "sojourn.tmpfiles")])
def test_users_and_directories_can_be_made(tmp_path: Path, tool: str, file: str) -> None:
    """In a root directory of its own; as anybody but root nothing could be given to the user."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    program = shutil.which(f"systemd-{tool}")
    if program is None:
        pytest.skip(f"systemd-{tool} is not installed")
    (tmp_path / "etc").mkdir()
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", SYSTEMD / "sojourn.sysusers"], check=True)
    assert "sojourn:" in (tmp_path / "etc" / "passwd").read_text()
    if tool == "tmpfiles":
        subprocess.run([program, "--create", f"--root={tmp_path}", SYSTEMD / file], check=True)
        status = (tmp_path / "etc" / "sojourn").stat()
        assert (status.st_uid, status.st_mode & 0o777) == (0, 0o750)
