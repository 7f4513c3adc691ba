"""Where reports go, what they refuse, and what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_worlds import HOSTILE, diagnosis, large_segment, reproduction

import sojourn
from sojourn.web.charts.axes import is_empty
from sojourn.web.report.contents import MOST_ROWS, Picture, Shown, flow_names, table_of
from sojourn.web.report.library import echarts_script
from sojourn.web.report.page import _widths, render
from sojourn.web.report.report import contents_of

SOJOURN = [sys.executable, "-m", "sojourn.cli.main"]
HERE = {**os.environ, "PYTHONPATH": str(Path(sojourn.__file__).parents[1])}


@pytest.fixture(scope="module")
def small() -> sojourn.SegmentResult:
    return large_segment(50)


@pytest.fixture(scope="module")
def pair(shared_data: Path) -> tuple[str, str]:
    folder = shared_data / "two-point"
    return str(folder / "ingress.pcap.gz"), str(folder / "egress.pcap.gz")


def test_a_report_is_one_file_that_loads_nothing(small: sojourn.SegmentResult, tmp_path: Path) -> None:
    target = sojourn.report(small, tmp_path / "a.html")
    page = target.read_text()
    assert target == tmp_path / "a.html"
    assert os.listdir(tmp_path) == ["a.html"]
    tags = page.replace(echarts_script(), "")
    assert not re.search(r"""<(link|iframe|object|embed|base)\b|\bsrc=|@import|url\(""", tags.split('id="data"')[0])
    assert "default-src 'none'" in tags
    assert "connect-src" not in tags  # none, as the default


def test_an_older_report_is_replaced_with_the_modes_of_a_new_file(small: sojourn.SegmentResult, tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    target.write_text("old")
    sojourn.report(small, target)
    assert target.read_text().startswith("<!doctype html>")
    (tmp_path / "new").touch()
    assert target.stat().st_mode == (tmp_path / "new").stat().st_mode


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("-", "report: a report is a file; name one, such as report.html"),
        ("a.txt", "report: 'a.txt' is no name of a page; let it end with .html"),
        ("no/a.html", "no/a.html: there is no directory no; make it, or name another"),
        ("folder.html", "folder.html: it is a directory; name a file in it"),
    ],
)
def test_what_cannot_be_a_report_s_file_is_refused(
    small: sojourn.SegmentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(sojourn.SojournError) as raised:
        sojourn.report(small, path)
    assert str(raised.value) == message


def test_what_was_measured_is_never_written_over(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, origin in zip(("in.html", "out.html"), pair, strict=True):
        (tmp_path / name).write_bytes(Path(origin).read_bytes())
    (tmp_path / "link.html").symlink_to(tmp_path / "in.html")
    result = sojourn.measure("in.html", "out.html")
    for name in ("in.html", "./out.html", "link.html"):
        with pytest.raises(sojourn.SojournError, match="it is what is measured; name another file"):
            sojourn.report(result, name)
    assert sojourn.rtt("in.html").source == "in.html"
    with pytest.raises(sojourn.SojournError, match="it is what is measured"):
        sojourn.report(sojourn.flows("in.html"), tmp_path / "in.html")
    assert (tmp_path / "in.html").read_bytes() == Path(pair[0]).read_bytes()


def test_only_answers_have_reports(tmp_path: Path) -> None:
    for wrong in (3, None, {"flows": []}, large_segment(50).select("mean", 3)):
        with pytest.raises(sojourn.SojournError, match="report: there is no report of"):
            sojourn.report(wrong, tmp_path / "a.html")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of a shell in a folder, with ``sojourn`` this checkout's."""
    line = command.replace("sojourn ", f"{' '.join(SOJOURN)} ", 1) if command.startswith("sojourn ") else command
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, cwd=folder, env=HERE, timeout=120, check=False
    )


def test_a_command_refuses_before_it_measures(pair: tuple[str, str], tmp_path: Path) -> None:
    found = run(f"sojourn measure nowhere.pcap {pair[1]} --report -", tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "sojourn: report: a report is a file; name one, such as report.html\n"
    (tmp_path / "mine.html").symlink_to(pair[0])
    found = run(f"sojourn measure mine.html {pair[1]} --report mine.html", tmp_path)
    assert found.returncode == 2
    assert found.stderr == "sojourn: mine.html: it is what is measured; name another file\n"


def test_a_watch_has_no_report(tmp_path: Path) -> None:
    found = run("sojourn mplane diagnose --from a --to b -t net.csv --watch --report a.html", tmp_path)
    assert found.returncode == 2
    assert found.stderr == "sojourn: --report: a watch has no end to report; leave --watch or --report out\n"


def test_a_disk_that_is_full_is_a_line_and_leaves_the_older_report(pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("old")
    # So many blocks of 512 bytes may a file have: as on a disk that is full.
    command = f"{' '.join(SOJOURN)} rtt {pair[0]} --limit 1 --report a.html"
    found = run(f"ulimit -f 100; {command}", tmp_path)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == "sojourn: a.html: File too large"
    assert "Traceback" not in found.stderr
    assert os.listdir(tmp_path) == ["a.html"]
    assert (tmp_path / "a.html").read_text() == "old"


def test_without_nicegui_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['nicegui'] = None\n"
        "from sojourn.web.report.writing import check_target\n"
        "check_target('a.html')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "a report needs ECharts, which NiceGUI brings; install sojourn[web]" in found.stderr


def test_the_library_is_a_script_without_an_end_of_its_own() -> None:
    script = echarts_script()
    assert "globalThis.echarts" in script
    assert "</script" not in script.lower()
    assert 'import("' not in script
    assert not re.search(r"\bexport\s*\{", script[-200:])


def test_an_exact_answer_says_so_and_shows_when(pair: tuple[str, str]) -> None:
    result = sojourn.measure(*pair, timeline=True)
    found = contents_of(result, [])
    assert [each.title for each in found.pictures] == [
        "Delay over time",
        "Loss over time",
        "When delays were how long",
        "How long the slow packets take",
        "The slowest flows",
    ]
    assert not any(is_empty(each.option) for each in found.pictures)
    assert {each.name: each.value for each in found.figures}["Lost"] == "19.01 %"
    assert "exact, of all packets" in found.figures[0].note
    assert found.span_ns is not None
    assert 7 < (found.span_ns[1] - found.span_ns[0]) / 1e9 < 8
    assert result.timeline is not None
    assert int(result.timeline.received.sum()) == result.aggregate["received"]
    assert result.timeline.lost is not None
    assert int(result.timeline.lost.sum()) == result.aggregate["lost"]
    assert [each.title for each in found.tables] == ["Flows"]
    assert len(found.tables[0]) == len(result)
    assert not {"95 % from", "Lost at least", "No answer because"} & {each.title for each in found.tables[0].columns}


def test_a_sketch_says_how_far_to_trust_it(small: sojourn.SegmentResult) -> None:
    found = contents_of(small, [])
    assert "19 of 20 cases" in found.trust[0]
    assert "off by the same ± 12.0 µs" in found.trust[-1]
    assert found.warnings == small.warnings
    assert {"95 % from", "95 % to", "No answer because"} <= {each.title for each in found.tables[0].columns}
    page = render(found, now_ns=1_794_712_577 * 10**9)
    assert page.index('id="warnings"') < page.index('id="answer"') < page.index('id="table0"')


def test_intervals_are_listed_and_drawn(pair: tuple[str, str]) -> None:
    found = contents_of(sojourn.measure(*pair, interval="1s"), [])
    assert [each.title for each in found.tables] == ["Intervals", "Flows in each interval"]
    assert len(found.tables[0]) == 8


def test_nothing_measured_is_a_report_too(tmp_path: Path) -> None:
    nothing = sojourn.SegmentResult.from_dict(
        {
            "aggregate": dict.fromkeys(("mean_ns", "std_ns", "low_ns", "high_ns", "method"))
            | {"sent": 0, "received": 0, "lost": None, "samples": 0, "reason": "nothing recorded"},
            "sketch": {"name": "lda"},
        }
    )
    page = sojourn.report(nothing, tmp_path / "a.html").read_text()
    assert "nothing recorded" in page


def test_a_diagnosis_names_the_segment(tmp_path: Path) -> None:
    found = contents_of(diagnosis(), ["a.jsonl"])
    assert {each.name: each.value for each in found.figures}["Verdict"] == "changed"
    assert "b" in {each.name: each.value for each in found.figures}["Segment"]
    assert found.facts["Measurements"] == "a.jsonl"
    (tmp_path / "a.html").write_text("measurements")
    with pytest.raises(sojourn.SojournError, match="it is what is measured"):
        sojourn.report(diagnosis(), tmp_path / "a.html", sources=[tmp_path / "a.html"])


def test_a_reproduction_lists_every_claim() -> None:
    found = contents_of(reproduction(), [])
    assert found.figures[0].value == "1 of 2"
    assert found.figures[0].is_bad
    assert len(found.pictures) == 2
    assert len(found.tables[0]) == 2


def test_hostile_names_end_no_element() -> None:
    page = render(contents_of(large_segment(50, name=HOSTILE), []))
    assert page.count("</script") == 3
    assert page.count("<script") == 3
    assert "<img" not in page.replace(echarts_script(), "")
    assert "\u202e" not in page


def test_no_chart_stands_beside_an_empty_place() -> None:
    def widths(*wide: bool) -> list[bool]:
        return _widths([Picture("", {}, is_wide=each) for each in wide])

    assert widths(False, False, True) == [False, False, True]
    assert widths(False, True) == [True, True]
    assert widths(False, False, False) == [False, False, True]
    assert widths(True, False, False) == [True, False, False]
    assert widths() == []


def test_more_rows_than_a_page_takes_are_counted() -> None:
    count = MOST_ROWS + 5
    table = table_of("Flows", {"a": list(range(count))}, [Shown("a", "A", "")], rows_name="flows", whole=count)
    assert (len(table), table.left_out) == (MOST_ROWS, 5)


def test_flows_of_any_key_have_names() -> None:
    assert flow_names({"src_ip": ["2001:db8::1"], "src_port": [53], "dest_ip": ["::2"], "dest_port": [None]}) == [
        "[2001:db8::1]:53 → ::2"
    ]
    assert flow_names({}) == []
