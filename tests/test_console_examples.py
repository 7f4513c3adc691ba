"""What the comparison of shell examples accepts, and what it must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from console_examples import ANY, Example, Reader, difference, examples, same_line

PAGE = """
```console
$ sojourn flows a.pcap
source  packets
10.0.0.1  3,751
$ sojourn rtt \\
    a.pcap > b.txt
```

<!-- figures: within 10% -->
```console
$ sojourn rtt a.pcap
mean 24.3 ms
```
"""


def test_blocks_are_read_as_commands_with_what_they_print() -> None:
    assert examples(PAGE) == [
        Example("sojourn flows a.pcap", ("source  packets", "10.0.0.1  3,751"), 0.02),
        Example("sojourn rtt  a.pcap > b.txt", (), 0.02),
        Example("sojourn rtt a.pcap", ("mean 24.3 ms",), 0.1),
    ]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("10.81.0.2  50232   3,751  24.5 ms", "10.81.0.2  50232  3,751    24.5 ms"),
        ("mean 24.3 ms", "mean 24.4 ms"),
        ("mean 24.3 ms", "mean 24,310 µs"),
        ("a  …  7.32 ms", "a  24.5 ms  exact  7.32 ms"),
        ("95 % 23.7 ms … 24.6 ms", "95 % 23.7 ms … 24.6 ms"),
        ("at 2026-11-15 03:16:17.491922", "at 2025-01-01 09:00:00.5"),
        ("sh[812]  0.5 s", "sh[90210]  0.5 s"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:40123"),
        ("from -1.5 µs", "from -1.51 µs"),
    ],
)
def test_lines_that_say_the_same_are_the_same(shown: str, printed: str) -> None:
    assert same_line(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("mean 24.3 ms", "mean 26.3 ms"),
        ("mean 24.3 ms", "mean 24.3 µs"),
        ("mean 24.3 ms", "median 24.3 ms"),
        ("8 lost", "9 lost"),
        ("from -1.5 µs", "from 1.5 µs"),
        ("10.81.0.2", "10.91.0.2"),
        ("port 50232", "port 50233"),
        ("n100.csv", "n101.csv"),
        ("a … c", "a b d"),
        ("3,751 packets", "packets"),
    ],
)
def test_lines_that_say_something_else_differ(shown: str, printed: str) -> None:
    assert not same_line(shown, printed)


def test_figures_of_one_run_compare_the_words_only() -> None:
    assert same_line("took 3.2 s for 12 packets, 0 lost", "took 17.9 ms for 99 packets, 0 lost", ANY)
    assert not same_line("took 3.2 s for 12 packets", "took 17.9 ms for 99 flows", ANY)


def test_lines_may_be_left_out_only_where_the_page_says_so() -> None:
    out = "one\ntwo\nthree\n"
    assert difference(Example("x", ("one", "…"), 0.02), out) is None
    assert difference(Example("x", ("…", "three"), 0.02), out) is None
    assert difference(Example("x", ("one", "two", "three", "noted"), 0.02), out, "noted\n") is None
    assert difference(Example("x", ("one", "two"), 0.02), out) == "printed, but not shown: three"
    assert difference(Example("x", ("one", "three"), 0.02), out) == "shown:   three\nprinted: two"
    assert difference(Example("x", ("one", "two", "three", "four"), 0.02), out) == "shown, but not printed: four"


def test_a_reader_keeps_the_shell_and_sees_what_goes_on(tmp_path: Path) -> None:
    reader = Reader(tmp_path, dict(os.environ))
    try:
        reader.enter(Example("export WORD=kept", (), 0.02))
        reader.enter(Example("echo $WORD", ("kept",), 0.02))
        reader.enter(Example("(sleep 0.5; echo late; sleep 60) &", ("late",), 0.02))
        with pytest.raises(AssertionError, match="printed: kept"):
            reader.enter(Example("echo $WORD", ("lost",), 0.02))
        with pytest.raises(AssertionError, match="false"):
            reader.enter(Example("false", (), 0.02))
        reader.enter(Example("kill %1", (), 0.02))
    finally:
        reader.leave()


def test_nothing_runs_on_when_a_reader_leaves_a_command_that_never_ends(tmp_path: Path) -> None:
    reader = Reader(tmp_path, dict(os.environ))
    reader.enter(Example("(echo up; exec sleep 600) &", ("up",), 0.02))
    assert reader.shell.stdin is not None
    reader.shell.stdin.write("until false; do sleep 1; done\n")
    reader.shell.stdin.flush()
    session = reader._session()
    reader.leave()
    assert len(session) >= 2
    assert reader._session() == []
