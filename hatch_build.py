"""Man pages for the wheel, generated from the help texts of the sources that are being built."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface[Any]):
    """Puts a page for each command under share/man/man1."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is put together; one that only refers to the sources has no pages."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="sojourn-man-")
        root = Path(self.root)
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(root / "scripts" / "man-pages"), self._folder.name]
        subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
        for page in sorted(Path(self._folder.name).iterdir()):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        """Called when it is written."""
        if self._folder is not None:
            self._folder.cleanup()
