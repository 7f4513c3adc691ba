"""The file of a secret: made once, for its owner alone, and refused where others may have read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sojourn.core.errors import InputError, UsageError
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.core.pseudonyms.secret import make_secret, read_secret


def test_a_new_secret_is_its_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    path, other = tmp_path / "key", tmp_path / "other"
    before = os.umask(0)
    try:
        make_secret(path)
    finally:
        os.umask(before)
    make_secret(other)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_secret(path)) == 32
    assert read_secret(path) != read_secret(other)
    kept = path.read_bytes()
    with pytest.raises(UsageError, match="there is a file already"):
        make_secret(path)
    assert path.read_bytes() == kept


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    make_secret(path := tmp_path / "key")
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"mode 0{mode:o}.*chmod 600"):
        Pseudonyms.of_file(path)


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "zz" * 32, "ab" * 200])
def test_what_is_no_secret_is_refused_without_being_repeated(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InputError, match="not a key of pseudonyms") as raised:
        read_secret(path)
    assert not text or text not in str(raised.value)


def test_digits_of_another_tool_are_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("0F" * 32 + "\n")
    path.chmod(0o600)
    assert read_secret(path) == b"\x0f" * 32


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "key", 0o600)
    with pytest.raises(InputError, match="not a file"):
        read_secret(path)


def test_a_directory_is_called_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: not a file"):
        read_secret(tmp_path)
