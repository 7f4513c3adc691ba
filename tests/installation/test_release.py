"""`make dist`: the wheel, its sources and a bill of materials that its own format's checker takes; twice the same."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.long


def built(folder: Path) -> dict[str, bytes]:
    """The files of a release built from a copy of the sources."""
    kept = ("src", "docs", "packaging", "requirements", "scripts")
    for name in kept:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.nb?"))
    for file in (
        *ROOT.glob("*.md"),
        ROOT / "LICENSE",
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        ROOT / "hatch_build.py",
    ):
        shutil.copy(file, folder)
    variables = {**os.environ, "PYTHON": sys.executable, "SOURCE_DATE_EPOCH": "1790000000"}
    subprocess.run(["sh", "scripts/dist"], cwd=folder, env=variables, check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}


def test_a_release_is_the_same_each_time_and_says_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = built(tmp_path / "a"), built(tmp_path / "b")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    (text,) = (data.decode() for name, data in first.items() if name.endswith(".cdx.json"))
    check = JsonStrictValidator(SchemaVersion.V1_6).validate_str
    assert check(text) is None
    assert check(text.replace('"type": "library"', '"type": "libary"', 1)) is not None, "the check checks"
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "sojourn")
    names = {part["name"] for part in bill["components"]}
    assert names >= {"numpy", "numba", "cbor2", "fastapi", "sqlalchemy"}
    assert all(part["version"] for part in bill["components"])
    (sources,) = (tmp_path / "a" / "dist").glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"scripts/man-pages", "hatch_build.py", "packaging/systemd/sojourn-agent.service", "SECURITY.md"} <= inside
    for line in first["SHA256SUMS"].decode().splitlines():
        digest, name = line.split()
        assert hashlib.sha256(first[name]).hexdigest() == digest
