"""Kernels compile wherever they come from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sojourn.core.kernels import borrowing_inlined, borrowing_kernel, inlined, kernel


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
