"""Where compiled kernels are kept: in a directory that can be written, and that nobody else can write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sojourn.core import compiling
from sojourn.core.compiling import cache_directory


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home, of a package that is installed where only root may write."""
    for name in ("SOJOURN_CACHE_DIR", "NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setattr(compiling, "_PACKAGE", tmp_path / "missing")
    monkeypatch.setattr(compiling.tempfile, "gettempdir", lambda: str(tmp_path))


def test_a_directory_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert cache_directory() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_service_keeps_kernels_in_its_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_DIRECTORY", f"{tmp_path}:/other")
    assert cache_directory() == tmp_path / "sojourn"


def test_without_a_home_kernels_are_kept_in_a_private_directory(tmp_path: Path) -> None:
    found = cache_directory()
    assert found == tmp_path / f"sojourn-kernels-{os.getuid()}"
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    trap = tmp_path / f"sojourn-kernels-{os.getuid()}"
    trap.mkdir()
    trap.chmod(0o777)
    assert cache_directory() is None


def test_a_link_to_elsewhere_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"sojourn-kernels-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert cache_directory() is None
