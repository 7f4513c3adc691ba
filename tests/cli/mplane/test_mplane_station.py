"""`sojourn mplane probe`, `reflect`, `path` and `diagnose`: answers for people and programs, refusals in one line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from segment_worlds import MS, SECOND, START_NS, Fault, line_path, world
from sojourn.cli.main import app
from sojourn.core.errors import SojournError
from sojourn.epochs.wire import encode
from sojourn.mplane.measurements import SegmentKind, SegmentMeasurement, to_line
from sojourn.mplane.router.epochs import RouterStream, Side, void_epoch
from sojourn.mplane.station.diagnosis import Window
from sojourn.mplane.station.paths import RecentSegments

SOJOURN = [sys.executable, "-m", "sojourn.cli.main", "mplane"]
PATH = line_path()
FAULT = Fault(PATH.segments[1], 20, 26, delay_ns=5 * MS)
NET = "source,target,weight\na,x,1\nx,m,1\nm,y,1\ny,n,1\nn,b,1\n"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "net.csv").write_text(NET)
    return tmp_path / "net.csv"


def measured(folder: Path, name: str, **how) -> Path:
    path = folder / name
    path.write_text("".join(to_line(one) for one in world(5, **how)))
    return path


def ask(command: str, net: Path, *words: object) -> str:
    given = ["mplane", command, "--from", "a", "--to", "b", "-t", str(net), "--undirected", "--upgraded", "m,n"]
    result = CliRunner().invoke(app, [*given, *map(str, words)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_diagnosis_has_the_promised_shape(net: Path, tmp_path: Path) -> None:
    rows = measured(tmp_path, "m.jsonl", intervals=26, fault=FAULT)
    answer = json.loads(ask("diagnose", net, rows, "--format", "json"))
    assert {"path", "change_ns", "low_ns", "high_ns", "verdict", "segments"} <= set(answer)
    assert answer["path"] == "a>x>m>y>n>b"
    assert answer["verdict"] == "changed"
    assert answer["low_ns"] < 5 * MS < answer["high_ns"]
    first = answer["segments"][0]
    assert {"segment", "kind", "share", "change_ns", "low_ns", "high_ns", "evidence"} <= set(first)
    assert (first["segment"], first["kind"]) == ("x>[m]>y", "router")
    assert first["low_ns"] < 5 * MS < first["high_ns"]


def test_a_diagnosis_reads_well(net: Path, tmp_path: Path) -> None:
    rows = measured(tmp_path, "m.jsonl", intervals=26, fault=FAULT)
    lines = ask("diagnose", net, rows).splitlines()
    assert lines[0] == "a>x>m>y>n>b: changed"
    assert lines[1].startswith("x>[m]>y: delay +")
    assert "x>[m]>y" in lines[4]


def test_baseline_and_now_choose_the_windows(net: Path, tmp_path: Path) -> None:
    rows = measured(tmp_path, "m.jsonl", intervals=36, fault=FAULT)
    begin = START_NS // SECOND
    how = ("--baseline", f"{begin}..{begin + 20}", "--format", "json")
    verdicts = {
        now: json.loads(ask("diagnose", net, rows, *how, "--now", begin + now))["verdict"] for now in (23, 26, 36)
    }
    assert verdicts == {23: "changed", 26: "changed", 36: "cleared"}
    assert json.loads(ask("diagnose", net, rows, *how, "--now", begin + 26, "--least", "9ms"))["verdict"] != "changed"


def test_a_path_is_put_together_and_what_is_missing_is_named(net: Path, tmp_path: Path) -> None:
    rows = measured(tmp_path, "m.jsonl", intervals=12, wander=0.0)
    answer = json.loads(ask("path", net, rows, "--format", "json"))
    assert answer["complete"]
    assert answer["low_ns"] < 10 * MS < answer["high_ns"]
    assert len(answer["segments"]) == 5
    rows.write_text("".join(line for line in rows.read_text().splitlines(keepends=True) if '"m", "y", "n"' not in line))
    shown = ask("path", net, rows)
    assert "incomplete: m>y>n: not measured" in shown
    assert json.loads(ask("path", net, rows, "--format", "json"))["mean_ns"] is None


def test_routers_epochs_are_read_from_files(net: Path, tmp_path: Path) -> None:
    stream = RouterStream("x", "y", 0, SECOND, Side.INGRESS)
    (tmp_path / "m.epochs").write_bytes(encode(void_epoch("m", stream, START_NS // SECOND)))
    probes = tmp_path / "p.jsonl"
    rows = [one for one in world(5, intervals=2) if one.segment.kind is not SegmentKind.ROUTER]
    probes.write_text("".join(map(to_line, rows)))
    shown = ask("path", net, probes, tmp_path / "m.epochs")
    assert "x>[m]>y: void in all 1 intervals" in shown


def growing(folder: Path, intervals: int) -> Path:
    """The same measurements up to some interval, put in place at once."""
    path, rows = folder / "m.jsonl", world(5, intervals=40, fault=FAULT)
    part = folder / "part"
    part.write_text("".join(to_line(one) for one in rows if one.start_ns < START_NS + intervals * SECOND))
    part.replace(path)
    return path


@pytest.mark.parametrize("how", ["json", "table"])
def test_a_watch_prints_a_line_for_every_new_verdict_until_ctrl_c(net: Path, tmp_path: Path, how: str) -> None:
    begin = START_NS // SECOND
    rows = growing(tmp_path, 20)
    path = ["--from", "a", "--to", "b", "-t", str(net), "--undirected", "--upgraded", "m,n"]
    words = [*SOJOURN, "diagnose", *path, str(rows), "--baseline", f"{begin}..{begin + 15}", "--format", how]
    command = [*words, "--watch", "--every", "100ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = []
        for intervals in (20, 26, 40):
            growing(tmp_path, intervals)
            lines.append(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        rest, said = watching.communicate(timeout=300)
    assert (watching.returncode, rest, said) == (0, "", "")
    if how == "json":
        found = [(answer["verdict"], answer["cause"]) for answer in map(json.loads, lines)]
        assert found == [("nothing changed", None), ("changed", "x>[m]>y"), ("cleared", "x>[m]>y")]
        return
    assert [line[10:].partition("  ")[0] for line in lines] == ["a>x>m>y>n>b"] * 3
    told = [line[10:].partition("  ")[2] for line in lines]
    for text, begins in zip(told, ("nothing changed by", "changed: x>[m]>y: delay +", "cleared: x>[m]>y"), strict=True):
        assert text.startswith(begins)


def test_a_watch_ends_after_its_time(net: Path, tmp_path: Path) -> None:
    rows = growing(tmp_path, 26)
    assert len(ask("diagnose", net, rows, "--watch", "--for", "1ms").splitlines()) == 1


def test_a_watch_asks_a_query_unit_for_what_is_new_and_keeps_the_baseline() -> None:
    asked: list[int] = []
    held = world(5, intervals=900)

    def read(since: int, until: int) -> list[SegmentMeasurement]:
        asked.append(since)
        return [one for one in held if since <= one.start_ns <= until and one.end_ns <= now]

    before = Window(START_NS, START_NS + 20 * SECOND)
    recent = RecentSegments(read, (before.from_ns, before.to_ns), keep_ns=60 * SECOND)
    for now in (START_NS + 300 * SECOND, START_NS + 301 * SECOND, START_NS + 900 * SECOND):
        rows = recent.rows(now)
        numbers = {(one.start_ns - START_NS) // SECOND for one in rows}
        end = (now - START_NS) // SECOND
        assert numbers == {*range(20), *range(end - 60, end)}
        assert len(rows) == len(numbers) * len(PATH.segments)
    assert asked == [START_NS, START_NS + 240 * SECOND, START_NS + 241 * SECOND]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("diagnose --from a --to b -t {net} --undirected --watch --now now x", "leave --now or --watch out"),
        ("diagnose --from a --to b -t {net} --undirected --watch --every 1ms x", "--every: out of range"),
        ("diagnose --from a --to b -t {net} --undirected", "there are no measurements; give FILE"),
        ("diagnose --from a --to b -t {net} --undirected --baseline now x", "not a range of time; write TIME..TIME"),
        ("diagnose --from a --to b -t {net} --undirected --baseline now..-5m x", "ends before it begins"),
        ("diagnose --from a --to zz -t {net} --undirected x", "there is no router 'zz'"),
        ("path --from a --to b -t {net} --undirected --format xml x", "--format: there is no format 'xml'"),
        ("probe --from a --to b", "there is nothing to probe; give --to and --address"),
        ("probe --from a --to b --address there", "--address: 'there' is not an address"),
        ("probe --from a --to b --address ::1 --rate 1e9", "too small or large for a rate"),
        ("probe --from a --to b --address ::1 --stamp later", "--stamp: 'later' is not a moment of sending"),
        ("probe --from a --to b --address ::1 --key-file {net}", "others may read the key; chmod 600 "),
        ("reflect --key-file {net}.none", "No such file or directory; make one by: (umask 077; openssl rand -hex 32"),
        ("reflect", "reflect: anybody could make it send packets to others; give --key-file FILE or --allow NETWORK"),
        ("reflect --listen 127.0.0.1 --listen 203.0.113.9", "anybody could make it send packets to others"),
        ("reflect --allow everyone", "--allow: 'everyone' is not a network"),
        ("reflect --listen here", "--listen: 'here' is not an address"),
        ("reflect --listen 203.0.113.9 --allow 10.0.0.0/8", "203.0.113.9:8621: "),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(net: Path, words: str, text: str) -> None:
    result = CliRunner().invoke(app, ["mplane", *words.format(net=net).split()])
    assert isinstance(result.exception, SojournError), result.output
    assert text in str(result.exception)
    assert "\n" not in str(result.exception)


def finished(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SOJOURN, *words], capture_output=True, text=True, timeout=600, check=False)


def test_probe_and_reflect_work_together_and_stop_when_asked(tmp_path: Path) -> None:
    keys = [tmp_path / "key", tmp_path / "other"]
    for number, path in enumerate(keys):
        path.touch(mode=0o600)
        path.write_text(f"{number}" * 32 + "\n")
    with open(tmp_path / "log", "w") as log:
        words = [
            *SOJOURN,
            "reflect",
            "--listen",
            "127.0.0.1",
            "--port",
            "18621",
            "--allow",
            "127.0.0.0/8",
            "--key-file",
            str(keys[0]),
        ]
        reflector = subprocess.Popen(words, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while "reflecting" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        words = ["probe", "--from", "a", "--to", "b", "--via", "x", "--address", "127.0.0.1", "--port", "18621"]
        how = ["--interval", "300ms", "--rate", "50", "--seed", "1", "--count", "2", "--raw", str(tmp_path / "raw")]
        how += ["--key-file", str(keys[0])]
        result = subprocess.run([*SOJOURN, *words, *how], capture_output=True, text=True, timeout=600, check=False)
        stranger = [*how[:-1], str(keys[1]), "--count", "1"]
        ignored = subprocess.run(
            [*SOJOURN, *words, *stranger], capture_output=True, text=True, timeout=600, check=False
        )
    finally:
        reflector.send_signal(signal.SIGINT)
        assert reflector.wait(60) == 0
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert (result.returncode, len(rows)) == (0, 2), result.stderr
    assert all(row["hops"] == ["a", "x", "b"] and row["void"] is None and row["mean_ns"] > 0 for row in rows)
    probes = [json.loads(line) for line in (tmp_path / "raw").read_text().splitlines()]
    mine = [one for one in probes if one["received_ns"]]
    assert len(mine) == sum(row["packets"] for row in rows)
    assert all(one["delay_ns"] == one["received_ns"] - one["sent_ns"] for one in mine)
    assert json.loads(ignored.stdout)["void"] == "no report: the reflector does not answer"
    assert "ignored: not signed with the key" in (tmp_path / "log").read_text()
