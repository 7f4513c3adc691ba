"""First runs: what compiles is announced and kept where it was asked to be, and warm-up leaves nothing to compile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn.lab.small_world import write_small_world

ALL = """flows in.pcap
rtt in.pcap
measure in.pcap out.pcap
measure early.pcap out.pcap
measure in.pcap out.pcap --by dscp
measure in.pcap out.pcap --identity payload
tomography trace.csv
mplane upgrade ring.csv --count 2"""


def sojourn(*arguments: str, cache: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, with kernels kept in `cache`."""
    kept = {"SOJOURN_CACHE_DIR": str(cache), "SOJOURN_QUIET": "", **environment}
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-m", "sojourn.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, env={**inherited, **kept}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the small world, and an empty cache beside them."""
    folder = tmp_path_factory.mktemp("world")
    write_small_world(folder)
    return folder


@pytest.fixture(scope="module")
def warm(folder: Path) -> Path:
    """A cache in which warm-up has kept what `flows` needs."""
    warm = folder / "warm"
    done = sojourn("warm-up", "flows", cache=warm, folder=folder)
    assert (done.returncode, done.stderr) == (0, f"sojourn: compiled for this machine; kept in {warm}\n")
    return warm


def kept_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*.nbc"))


def test_a_first_run_says_that_it_compiles_and_where_that_is_kept(folder: Path, warm: Path) -> None:
    cold = folder / "cold"
    shutil.copytree(warm, cold)
    for path in cold.rglob("locate*.nb[ci]"):  # the kernel that takes longest
        path.unlink()
    assert kept_in(cold) != kept_in(warm)
    found = sojourn("flows", "in.pcap", cache=cold, folder=folder)
    assert found.returncode == 0
    assert f"compiling for this machine, half a minute or so; the next run finds it in {cold}" in found.stderr
    assert any(name.startswith("locate") for name in kept_in(cold))
    again = sojourn("flows", "in.pcap", cache=cold, folder=folder)
    assert "compil" not in again.stderr
    assert again.stdout == found.stdout


def test_after_warm_up_a_command_has_nothing_to_compile(folder: Path, warm: Path) -> None:
    kept = kept_in(warm)
    assert sojourn("flows", "in.pcap", cache=warm, folder=folder).returncode == 0
    assert kept_in(warm) == kept


def test_after_warm_up_nothing_is_compiled_when_a_live_capture_begins(warm: Path) -> None:
    """While kernels are compiled packets pass unseen."""
    kept = " ".join(kept_in(warm))
    assert all(
        name in kept
        for name in ("ring.index_blocks", "ring.gather_bytes", "segmentation.write_segments", "transport._fill")
    )


@pytest.mark.long
def test_after_warm_up_no_command_has_anything_to_compile(folder: Path) -> None:
    everything = folder / "everything"
    assert sojourn("warm-up", cache=everything, folder=folder).returncode == 0
    kept = kept_in(everything)
    for run in ALL.splitlines():
        assert sojourn(*run.split(), cache=everything, folder=folder).returncode == 0
    assert kept_in(everything) == kept


@pytest.mark.long
def test_after_warm_up_questions_about_arrays_of_any_size_have_nothing_to_compile(folder: Path) -> None:
    """They have 30 s, and little memory to compile in; large arrays have kernels of their own."""
    asked = folder / "asked"
    assert sojourn("warm-up", "query", cache=asked, folder=folder).returncode == 0
    kept = " ".join(kept_in(asked))
    assert all(f"whitening.{name}" in kept for name in ("_substitute", "_take_private", "_factorise", "_fold"))


def test_where_nothing_can_be_kept_warm_up_says_what_to_set(folder: Path) -> None:
    found = sojourn("warm-up", cache=Path("/proc/none"), folder=folder)
    assert found.returncode == 1
    assert found.stderr == "sojourn: warm-up: nothing can be kept; set SOJOURN_CACHE_DIR to a writable directory\n"


def test_an_unknown_command_is_bad_usage(folder: Path) -> None:
    found = sojourn("warm-up", "nonsense", cache=folder / "unused", folder=folder)
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)


def test_a_missing_package_is_named_with_the_extra_that_brings_it(folder: Path) -> None:
    hide = folder / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'uvicorn': raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    found = sojourn("serve", "--data", "data", cache=folder / "unused", folder=folder, PYTHONPATH=str(hide))
    assert found.returncode == 1
    what = "sojourn: this needs the package uvicorn, which is not installed"
    assert found.stderr.splitlines()[-1] == f"{what}; install it with: pip install 'sojourn[server]'"
