"""Where devices stand on devices, an IO counts at the top."""

from __future__ import annotations

from pathlib import Path

from sojourn.sources.disk_io import Devices


def device(root: Path, name: str, *, holders: tuple[str, ...] = ()) -> Path:
    folder = root / name
    (folder / "holders").mkdir(parents=True)
    for holder in holders:
        (folder / "holders" / holder).touch()
    return folder


def partition(disk: Path, name: str, *, start: int, size: int, holders: tuple[str, ...] = ()) -> None:
    folder = device(disk, name, holders=holders)
    for file, value in (("partition", 1), ("start", start), ("size", size)):
        (folder / file).write_text(f"{value}\n")


def test_ios_on_what_another_device_holds_are_not_at_the_top(tmp_path: Path) -> None:
    disk = device(tmp_path, "8:0")
    partition(disk, "sda1", start=2048, size=1000)
    partition(disk, "sda2", start=4096, size=1000, holders=("dm-0",))
    device(tmp_path, "8:16", holders=("md0",))
    device(tmp_path, "253:0")
    ios = [
        (8, 0, 2048, True),
        (8, 0, 4095, True),
        (8, 0, 4096, False),
        (8, 0, 5095, False),
        (8, 0, 5096, True),
        (8, 16, 0, False),
        (253, 0, 4096, True),
        (259, 7, 0, False),  # hidden: a path below a multipath device
    ]
    devices = Devices(tmp_path)
    found = [devices.is_top(major << 20 | minor, sector) for major, minor, sector, _ in ios]
    assert found == [top for *_, top in ios]
