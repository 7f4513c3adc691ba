"""Kernels compile wherever they come from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.core.arrays import Int64Array
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel, inlined, kernel, prefetch


@pytest.mark.parametrize("compiled", [kernel, inlined, borrowing_kernel, borrowing_inlined])
def test_what_cannot_be_cached_is_compiled_all_the_same(compiled: Callable[[Any], Any]) -> None:
    """Code without a file has nowhere to be cached, like that of a user who may write neither beside it nor at home."""
    names: dict[str, Any] = {}
    exec(compile("def double(x):\n    return 2 * x\n", "<nowhere>", "exec"), names)
    assert compiled(names["double"])(4) == 8


def test_what_no_kernel_uses_is_not_loaded_with_numba_and_can_be_loaded_later() -> None:
    program = (
        "import sys, numpy as np; from sojourn.core.hash_kernels import mix_column; "
        "mix_column(np.arange(3, dtype=np.uint64)); "
        "print([name for name in ('scipy.linalg', 'cffi') if name in sys.modules]); "
        "import scipy.linalg, cffi; print(scipy.linalg.det([[2.0]]), cffi.FFI().sizeof('int'))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n") == ["[]", "2.0 4", ""]


LOADING = """
import sys, numpy as np
from sojourn.core.hash_kernels import hash_rows, mix_column
print(mix_column(np.arange(3, dtype=np.uint64)).sum(), "numba.np.npyimpl" in sys.modules)
if len(sys.argv) > 1:
    print(hash_rows(np.ones((2, 3), np.uint8), np.uint64(7)).sum(), "numba.np.npyimpl" in sys.modules)
print([name for name in ("scipy", "scipy.linalg", "cffi", "yaml") if name in sys.modules])
"""


def test_a_kernel_is_loaded_from_the_cache_without_numbas_registries_and_another_compiled_after_it(
    tmp_path: Path,
) -> None:
    def run(*arguments: str) -> list[str]:
        environment = {**os.environ, "SOJOURN_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
        command = [sys.executable, "-c", LOADING, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    mixed, is_filled, *loaded = run()
    assert (is_filled, loaded) == ("True", ["[]"])
    assert run() == [mixed, "False", "[]"]
    *_, hashed, is_filled, loaded_too = run("both")
    assert (is_filled, loaded_too) == ("True", "[]")
    assert run("both") == [mixed, "False", hashed, "False", "[]"]


def mixed(cache: Path) -> subprocess.CompletedProcess[str]:
    """What a fresh process says that mixes a column with a kernel from this cache."""
    environment = {**os.environ, "SOJOURN_CACHE_DIR": str(cache), "NUMBA_DISABLE_JIT": "0"}
    return subprocess.run([sys.executable, "-c", LOADING], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the kernels of `mixed`."""
    filled = tmp_path_factory.mktemp("filled")
    assert mixed(filled).returncode == 0
    return filled


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("share", [0, 2])
def test_what_is_left_of_a_damaged_cache_is_compiled_anew_and_kept(
    ending: str, share: int, filled: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(filled, damaged)
    for path in damaged.rglob(f"*.{ending}"):
        path.write_bytes(path.read_bytes()[: share and path.stat().st_size // share])
    first, second, whole = mixed(damaged), mixed(damaged), mixed(filled)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == whole.stdout.replace("False", "True")  # compiled, which fills the registries
    assert second.stdout == whole.stdout  # loaded


def test_code_for_other_types_is_not_taken(filled: Path, tmp_path: Path) -> None:
    """Two processes that compile one function for two types at once may both call their files the first."""
    confused = tmp_path / "confused"
    shutil.copytree(filled, confused)
    (first,) = confused.rglob("*mix_column*.1.nbc")
    other = "import numpy as np; from sojourn.core.hash_kernels import mix_column; mix_column(np.arange(6)[::2])"
    environment = {**os.environ, "SOJOURN_CACHE_DIR": str(confused), "NUMBA_DISABLE_JIT": "0"}
    subprocess.run([sys.executable, "-c", other], env=environment, check=True)
    (second,) = confused.rglob("*mix_column*.2.nbc")
    shutil.copy(second, first)
    assert mixed(confused).stdout == mixed(filled).stdout.replace("False", "True")


def test_where_the_disk_is_full_kernels_are_compiled_and_that_they_are_not_kept_is_said_once(tmp_path: Path) -> None:
    full = (
        "import errno, os, sys, numpy as np; from numba.core.caching import IndexDataCacheFile as Files\n"
        "def fail(*_): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "Files._open_for_write = fail\n"
    )
    environment = {**os.environ, "SOJOURN_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
    command = [sys.executable, "-c", full + LOADING, "both"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0
    assert found.stderr.count("\n") == 1
    assert f"{tmp_path}: compiled code cannot be kept" in found.stderr
    assert "No space left on device" in found.stderr


def test_any_address_can_be_prefetched() -> None:
    """A hint alone: what is not mapped is not read."""

    @kernel
    def ahead(addresses: Int64Array) -> int:
        for address in addresses:
            prefetch(address)
        return len(addresses)

    column = np.arange(4)
    assert ahead(np.array([0, -1, column.ctypes.data, 1 << 46])) == 4
    assert column.tolist() == [0, 1, 2, 3]
