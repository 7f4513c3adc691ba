"""Many captures at once: the same answers whoever works on them, and recordings merged to what one would be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

import sojourn
from capture_parts import split_pair
from command_line import invoked
from dask_cluster import Cluster, dask_cluster
from sojourn.core.errors import InputError, UsageError
from sojourn.core.processors import at_most, usable_processors
from sojourn.epochs.wire import read_epochs

PARTS = 4
WHERE = "src net 10.81.0.0/16"


@pytest.fixture(scope="module")
def folders(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return split_pair(shared_data, tmp_path_factory.mktemp("captures"), PARTS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask"), 2) as running:
        yield running


def run(*arguments: str, exit_code: int = 0) -> str:
    result = invoked("batch", *arguments)
    assert result.exit_code == exit_code, result.output
    return result.stdout


def of_workers(folders: tuple[Path, Path], tmp_path: Path, *who: str) -> tuple[dict, list[dict]]:
    """What a measurement says, and its flows."""
    flows = tmp_path / "flows.parquet"
    told = json.loads(run("measure", *map(str, folders), *who, "--flows", str(flows), "--format", "json"))
    for part in told["parts"]:
        part["sender"], part["receiver"] = Path(part["sender"]).name, Path(part["receiver"]).name
    return told, parquet.read_table(flows).to_pylist()


def test_whoever_works_the_answers_are_the_same_and_those_of_each_pair_alone(
    folders: tuple[Path, Path], cluster: Cluster, tmp_path: Path
) -> None:
    alone = of_workers(folders, tmp_path, "--workers", "1")
    assert of_workers(folders, tmp_path, "--workers", "2") == alone
    assert of_workers(folders, tmp_path, "--cluster", cluster.address) == alone
    told, flows = alone
    for number, part in enumerate(told["parts"], start=1):
        names = [str(folder / part["sender"]) for folder in folders]
        expected = sojourn.measure(*names, sketch="exact")
        for name in ("sent", "received", "lost", "mean_ns", "std_ns", "p99_ns"):
            assert part[name] == expected.aggregate[name], name
        assert [row["packets"] for row in flows if row["part"] == number] == [row["packets"] for row in expected]
    whole = told["aggregate"]
    assert whole["sent"] == sum(part["sent"] for part in told["parts"])
    assert whole["lost"] == sum(part["lost"] for part in told["parts"])


def test_the_mean_and_deviation_of_all_parts_are_those_of_all_packets(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    told, _ = of_workers(folders, tmp_path, "--workers", "1")
    sums = [(part["received"], part["mean_ns"], part["std_ns"]) for part in told["parts"]]
    count = sum(n for n, _, _ in sums)
    mean = sum(n * m for n, m, _ in sums) / count
    square = sum(n * (s**2 + m**2) for n, m, s in sums) / count
    assert told["aggregate"]["mean_ns"] == pytest.approx(mean, abs=1)
    assert told["aggregate"]["std_ns"] == pytest.approx((square - mean**2) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("interval", [None, "1s"])
def test_merged_recordings_answer_as_one_recording_of_everything(
    folders: tuple[Path, Path], shared_data: Path, tmp_path: Path, interval: str | None
) -> None:
    every = [] if interval is None else ["--interval", interval]
    common = ["--memory", "64KB", "--filter", WHERE, *every]
    merged, whole = [], []
    for name, folder in zip(("ingress", "egress"), folders, strict=True):
        path = tmp_path / f"{name}.epochs"
        run("record", *sorted(map(str, folder.iterdir())), "--node", name, "-w", str(path), "--workers", "2", *common)
        capture = shared_data / "two-point" / f"{name}.pcap.gz"
        whole.append(list(sojourn.record(capture, node=name, memory="64KB", where=WHERE, interval=interval)))
        with path.open("rb") as file:
            merged.append(list(read_epochs(file)))
    assert [[epoch.sketch.recorded for epoch in end] for end in merged] == [
        [epoch.sketch.recorded for epoch in end] for end in whole
    ]
    answers = [sojourn.estimate(*ends) for ends in (merged, whole)]
    assert answers[0].aggregate == answers[1].aggregate
    rows = [{(row["src_port"], row["dest_port"]): row["packets"] for row in answer} for answer in answers]
    assert rows[0] == rows[1]


def test_many_epochs_are_decoded_alike_by_whoever(folders: tuple[Path, Path], cluster: Cluster, tmp_path: Path) -> None:
    places = tmp_path / "in", tmp_path / "out"
    for folder, place in zip(folders, places, strict=True):
        place.mkdir()
        for path in folder.iterdir():
            recording = sojourn.record(path, memory="16KB", where=WHERE, node=place.name)
            recording.write(lambda path=path, place=place: (place / f"{path.stem}.epochs").open("wb"))
    alone = of_estimates(places, tmp_path, "--workers", "1")
    assert of_estimates(places, tmp_path, "--workers", "2") == alone
    assert of_estimates(places, tmp_path, "--cluster", cluster.address) == alone
    assert {row["method"] for row in alone[1] if row["mean_ns"] is not None}
    assert len(alone[0]["parts"]) == PARTS


def of_estimates(places: tuple[Path, Path], tmp_path: Path, *who: str) -> tuple[dict, list[dict]]:
    flows = tmp_path / "flows.jsonl"
    told = json.loads(run("estimate", *map(str, places), *who, "--flows", str(flows), "--format", "json"))
    return told, [json.loads(line) for line in flows.read_text().splitlines()]


def test_a_pair_that_cannot_be_measured_keeps_no_other_from_it(folders: tuple[Path, Path], tmp_path: Path) -> None:
    places = tmp_path / "in", tmp_path / "out"
    for place, folder in zip(places, folders, strict=True):
        place.mkdir()
        for path in list(folder.iterdir())[:2]:
            (place / path.name).symlink_to(path)
        (place / "broken.pcap").write_bytes(b"this is no capture")
    told = json.loads(run("measure", *map(str, places), "--workers", "2", "--format", "json", exit_code=1))
    assert [part["error"] is None for part in told["parts"]] == [False, True, True]
    assert "not a capture" in told["parts"][0]["error"]
    assert (told["aggregate"]["parts"], told["aggregate"]["failed"]) == (2, 1)
    text = run("measure", *map(str, places), exit_code=1)
    assert "2 parts, 1 failed" in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["measure", "nowhere/*.pcap", "{out}"], "there is no such file"),
        (["measure", "{in}", "{out}/part-00.pcap"], "4 files of the sender, 1 of the receiver"),
        (["measure", "{in}", "{out}", "--flows", "x.txt"], "flows are for programs"),
        (
            ["measure", "{in}", "{out}", "--workers", "2", "--cluster", "tcp://127.0.0.1:9"],
            "both workers and a cluster",
        ),
        (["record", "{in}/part-00.pcap", "--node", "a", "-w", "{in}/part-00.pcap"], "that is the capture itself"),
    ],
)
def test_what_cannot_be_done_is_said_before_it_is_begun(
    folders: tuple[Path, Path], words: list[str], error: str
) -> None:
    given = [word.replace("{in}", str(folders[0])).replace("{out}", str(folders[1])) for word in words]
    with pytest.raises(UsageError, match=error):
        run(*given)


def test_a_capture_of_a_recording_that_cannot_be_read_is_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    captures = [str(folders[0] / "part-00.pcap"), str(tmp_path / "nowhere.pcap")]
    with pytest.raises((InputError, FileNotFoundError), match="nowhere"):
        run("record", *captures, "--node", "a", "-w", str(tmp_path / "x.epochs"), "--workers", "2")
    assert not (tmp_path / "x.epochs").exists()


def test_in_a_block_there_are_no_more_processors_than_it_says() -> None:
    there = usable_processors()
    with at_most(1):
        assert usable_processors() == 1
    assert usable_processors() == there
