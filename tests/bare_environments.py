"""Environments in which nothing is installed but a wheel and exactly what its metadata asks for.

The packages are those of the environment that the tests run in, by links: it takes a second and no network, and a
package that the metadata forgets is not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


def built_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built without a network."""
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT]
    subprocess.run(command, check=True)
    (found,) = folder.glob("*.whl")
    return found


@dataclass(frozen=True)
class Bare:
    """An environment, and a home of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TZ") if name in os.environ}
        path = f"{self.folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {**kept, "PATH": path, "HOME": str(self.folder / "home"), "SOJOURN_QUIET": "1"}

    def run(self, *command: object, cwd: Path | None = None, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """What a command says; never a traceback."""
        words = [str(word) for word in command]
        if words[0] == "sojourn":
            words[0] = str(self.folder / "bin" / "sojourn")
        where = cwd or self.folder / "home"
        done = subprocess.run(
            words, capture_output=True, text=True, env=self.variables, cwd=where, timeout=timeout, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done


def bare_environment(folder: Path, wheel: Path) -> Bare:
    """The wheel with its base dependencies."""
    packages = _empty(folder)
    subprocess.run([*PIP, "--python", folder / "bin/python", "install", "--no-index", "--no-deps", wheel], check=True)
    _link_all(packages, None)
    return Bare(folder)


def with_extra(bare: Bare, folder: Path, extra: str) -> Bare:
    """The same wheel with one of its extras, in an environment of its own."""
    packages = _empty(folder)
    for installed in (*bare.packages.glob("sojourn"), *bare.packages.glob("sojourn-*.dist-info")):
        (packages / installed.name).symlink_to(installed)
    script = (bare.folder / "bin" / "sojourn").read_text().replace(str(bare.python), str(folder / "bin" / "python"))
    (folder / "bin" / "sojourn").write_text(script)
    (folder / "bin" / "sojourn").chmod(0o755)
    _link_all(packages, extra)
    return Bare(folder)


def _empty(folder: Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    (folder / "home").mkdir()
    return Bare(folder).packages


def _link_all(packages: Path, extra: str | None) -> None:
    own = Distribution.at(next(packages.glob("sojourn-*.dist-info")))
    for needed in sorted(_closure(own, extra)):
        _link(distribution(needed), packages)


def _closure(own: Distribution, extra: str | None) -> set[str]:
    """The names of all that a distribution needs, and what that needs."""
    found: set[str] = set()
    waiting = [(own, extra)]
    while waiting:
        current, asked = waiting.pop()
        for text in current.requires or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": asked or ""}):
                continue
            name = requirement.name.lower().replace("_", "-")
            if name not in found or requirement.extras:
                found.add(name)
                waiting += [(distribution(requirement.name), more) for more in (None, *requirement.extras)]
    return found


def _link(installed: Distribution, packages: Path) -> None:
    for top in sorted({file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}):
        target = packages / top
        if not target.exists():
            target.symlink_to(installed.locate_file(top))
