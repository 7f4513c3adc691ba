"""Kernels compile wherever they come from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
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
