"""A plugin for pytest: kernels run by the interpreter, every load and store at an address checked.

``NUMBA_DISABLE_JIT=1 python -m pytest -p fuzz.checked_tests tests/capture/decode/test_decoding.py …``; see README.md.
"""

from __future__ import annotations

from fuzz.interpreted import check_memory

check_memory()
