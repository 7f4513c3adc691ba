"""What a command loads: nothing that its answer does not need, for loading is most of a small capture's time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sojourn.lab.small_world import write_small_world

# Typer's conversion; colours; what Numba takes in where it is installed; its registries; its code that makes arrays.
UNUSED = {"pydantic", "rich.console", "scipy", "yaml", "cffi"}
UNUSED |= {"numba.np.npyimpl", "numba.np.arraymath", "numba.np.arrayobj"}
PROGRAM = """
import sys
from sojourn.cli.main import main
try:
    main()
finally:
    print(*sys.modules, sep="\\n", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_small_world(folder)
    return folder


def loaded_by(arguments: str, folder: Path) -> set[str]:
    """The modules that a command's second run has loaded; the first one may have had to compile."""
    for _run in range(2):
        command = [sys.executable, "-c", PROGRAM, *arguments.split()]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", ["measure in.pcap out.pcap", "flows in.pcap", "rtt in.pcap"])
def test_a_command_on_a_capture_loads_kernels_and_no_more_of_numba(folder: Path, arguments: str) -> None:
    loaded = loaded_by(arguments, folder)
    assert "sojourn.capture.decode.locate" in loaded
    assert not loaded & UNUSED


def test_exact_answers_load_no_sketch(folder: Path) -> None:
    loaded = loaded_by("measure in.pcap out.pcap", folder)
    of_sketches = {name for name in loaded if name.startswith(("sojourn.sketches.", "sojourn.estimation."))}
    light = {f"sojourn.sketches.{name}" for name in ("kinds", "parameters", "sketch")}
    assert of_sketches == {*light, "sojourn.estimation.differences"}
    assert not loaded & {"sojourn.segments.answer", "sojourn.segments.plan", "sojourn.segments.surveyed"}
