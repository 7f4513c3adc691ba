"""The desk of uploads without a browser: its room on disk, its limits, and what becomes of what others left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.core.errors import UsageError
from sojourn.lab.small_world import write_small_world
from sojourn.web.uploads.desk import MOST_OF_ONE, NoUploadError, Upload, UploadDesk, UploadOptions
from sojourn.web.uploads.room import Room, TooFullError, safe_name
from sojourn.web.uploads.working import REPORT
from waiting import eventually

HOUR_NS = 3600 * 10**9


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now_ns = 10**18

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(tmp_path: Path, clock: Clock) -> Iterator[UploadDesk]:
    options = UploadOptions(most_bytes=20_000_000, keep_ns=HOUR_NS, directory=tmp_path / "uploads")
    made = UploadDesk(options, clock=clock)
    yield made
    made.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_small_world(folder)
    return folder


def give(desk: UploadDesk, upload: Upload, **files: Path) -> None:
    for place, path in files.items():
        with desk.receiving(upload, place, path.name) as take:
            take(path.read_bytes())


def fill(desk: UploadDesk, upload: Upload, *sizes: int) -> None:
    with desk.receiving(upload, "capture", "a.pcap") as take:
        for size in sizes:
            take(bytes(size))


def finished(upload: Upload) -> Upload:
    eventually(lambda: upload.state in ("done", "failed"))
    return upload


def test_files_become_a_report_and_go(desk: UploadDesk, world: Path) -> None:
    upload = desk.create("me", "measure")
    with pytest.raises(UsageError, match="its sender and receiver is missing"):
        desk.start(upload)
    give(desk, upload, sender=world / "in.pcap", receiver=world / "out.pcap")
    desk.start(upload)
    assert finished(upload).error == ""
    assert "2,400 packets sent" in "\n".join(upload.lines)
    assert sorted(one.name for one in upload.folder.iterdir() if one.suffix == ".pcap") == []
    assert upload.size_bytes == (upload.folder / REPORT).stat().st_size
    desk.remove(upload)
    assert not upload.folder.exists()
    with pytest.raises(NoUploadError):
        desk.find(upload.id, "me")


def test_two_files_of_one_name_stay_apart(desk: UploadDesk, world: Path) -> None:
    upload = desk.create("me", "measure")
    for place, path in (("sender", "in.pcap"), ("receiver", "out.pcap")):
        with desk.receiving(upload, place, "../same.pcap") as take:
            take((world / path).read_bytes())
    desk.start(upload)
    assert "same.pcap → 2-same.pcap" in "\n".join(finished(upload).lines)


def test_an_upload_is_its_owners_alone_and_kept_for_a_while(desk: UploadDesk, clock: Clock) -> None:
    upload = desk.create("me", "rtt")
    with pytest.raises(NoUploadError):
        desk.find(upload.id, "somebody")
    assert desk.of("somebody") == []
    clock.now_ns += HOUR_NS + 1
    eventually(lambda: desk.of("me") == [])
    assert not upload.folder.exists()


def test_what_takes_too_long_is_ended_and_says_so(tmp_path: Path, world: Path) -> None:
    options = UploadOptions(most_bytes=20_000_000, keep_ns=HOUR_NS, directory=tmp_path)
    slow = UploadDesk(options, seconds=0.01)
    upload = slow.create("me", "measure")
    give(slow, upload, sender=world / "in.pcap", receiver=world / "out.pcap")
    slow.start(upload)
    assert "took more than 0.01 s; upload a shorter part" in finished(upload).error
    assert upload.size_bytes == 0
    slow.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_removed_while_it_is_worked_on_leaves_nothing(desk: UploadDesk, world: Path) -> None:
    upload = desk.create("me", "measure")
    give(desk, upload, sender=world / "in.pcap", receiver=world / "out.pcap")
    desk.start(upload)
    eventually(lambda: upload.state != "waiting")
    desk.remove(upload)
    eventually(lambda: not upload.folder.exists())
    # All of the room is there again.
    desk.room.take("me", desk.room.most_of_one)


def test_nobody_takes_more_room_than_may_be_taken(desk: UploadDesk) -> None:
    upload = desk.create("me", "rtt")
    with pytest.raises(TooFullError, match=r"your uploads may take 9\.54 MiB together"):
        fill(desk, upload, 9_000_000, 2_000_000)
    assert list(upload.folder.iterdir()) == []
    desk.room.take("one", 9_000_000)
    desk.room.take("two", 9_000_000)
    with pytest.raises(TooFullError, match="all uploads together"):
        desk.room.take("three", 9_000_000)
    desk.room.give_back("one", 9_000_000)
    desk.room.take("three", 9_000_000)


def test_nobody_has_very_many_uploads(desk: UploadDesk) -> None:
    for _ in range(MOST_OF_ONE):
        desk.create("me", "rtt")
    with pytest.raises(UsageError, match="remove one"):
        desk.create("me", "rtt")
    desk.create("another", "rtt")


def test_a_file_comes_once_and_to_its_place(desk: UploadDesk, world: Path) -> None:
    upload = desk.create("me", "rtt")
    with pytest.raises(UsageError, match="no sender of rtt"), desk.receiving(upload, "sender", "a"):
        pass
    give(desk, upload, capture=world / "in.pcap")
    with pytest.raises(UsageError, match="is there already"), desk.receiving(upload, "capture", "a"):
        pass


def test_what_a_killed_process_left_is_removed_and_what_another_has_stays(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from sojourn.web.uploads.room import Room\n"
    code += "room = Room(Path(sys.argv[1]), 1000); (room.folder / 'kept').write_text('x'); print(flush=True)\n"
    code += "time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    mine = Room(tmp_path, 1000)
    assert len(list(tmp_path.glob("*/kept"))) == 1
    other.kill()
    other.wait()
    again = Room(tmp_path, 1000)
    assert list(tmp_path.glob("*/kept")) == []
    assert {mine.folder, again.folder} == set(tmp_path.iterdir())
    for room in (mine, again):
        room.close()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("in.pcap", "in.pcap"),
        ("/etc/passwd", "passwd"),
        ("..", "capture"),
        ("a\nb\x00.pcap", "ab.pcap"),
        (".hidden", "hidden"),
        ("-w", "w"),
        ("ü" * 300 + ".pcap", None),
    ],
)
def test_a_name_is_safe_here(name: str, kept: str | None) -> None:
    found = safe_name(name)
    assert found == (kept or found)
    assert len(os.fsencode(found)) <= 120
    assert found.endswith(".pcap") or kept is not None
