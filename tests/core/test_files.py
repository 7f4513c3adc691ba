"""Files from outside: pipes are read, devices refused, and what cannot be opened is an error of ours."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sojourn.core.errors import InputError
from sojourn.core.files import open_input, shown_name


@pytest.mark.parametrize(
    ("name", "message", "cause"),
    [
        ("nowhere", "nowhere: No such file or directory", FileNotFoundError),
        (".", ".: Is a directory", IsADirectoryError),
        ("", "'': No such file or directory", FileNotFoundError),
        ("a\0b", r"a\x00b: embedded null byte", ValueError),
        ("a" * 300, f"{'a' * 300}: File name too long", OSError),
    ],
)
def test_what_cannot_be_opened_is_an_input_error_with_its_cause(name: str, message: str, cause: type) -> None:
    with pytest.raises(InputError) as raised:
        open_input(name)
    assert str(raised.value) == message
    assert isinstance(raised.value.__cause__, cause)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_that_never_ends_is_refused(device: str) -> None:
    with pytest.raises(InputError, match=f"{device}: this is a device; give a file or a pipe"):
        open_input(device)


def test_files_and_pipes_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with open_input(tmp_path / "file") as file:
        assert file.read() == b"abc"
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"def",))
    writer.start()
    with open_input(str(tmp_path / "pipe")) as pipe:
        assert pipe.read() == b"def"
    writer.join()


def test_a_terminal_is_read() -> None:
    leader, follower = os.openpty()
    with open_input(os.ttyname(follower)) as terminal:
        assert terminal.isatty()
    os.close(leader)
    os.close(follower)


def test_stdin_is_called_by_its_name() -> None:
    assert [shown_name(name) for name in ("-", Path("-"), "a.pcap")] == ["stdin", "stdin", "a.pcap"]
