"""Fuzzing of everything that reads bytes or text from outside; see README.md in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

# The tests' builders of frames and capture files serve as sources of seeds, too.
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "capture")]
