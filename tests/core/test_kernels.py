"""Kernels compile wherever they come from."""

from __future__ import annotations

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
