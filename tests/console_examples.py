"""Shell examples of the documents: run as a reader would, in one shell for each page, and compared with what is shown.

A ``console`` block holds commands (``$ …``, continued where a line ends with a backslash) and what they print. Output
that is shown is compared with standard output, or with standard output and then standard error. What is allowed to
differ, and nothing else:

- ``…`` by itself on a line stands for any lines, inside of a line for any text (columns that are left out);
- numbers may differ by 2 %, or by one in the last digit that is shown; units are taken into account (900 µs ≈ 0.9 ms).
  ``<!-- figures: within 10% -->`` before a block states another tolerance, ``<!-- figures: of one run -->`` compares
  the words only, and takes "exact" and numbers for each other: what a real machine measures is never the same twice;
- numbers of four digits and more without a comma are names (ports), and the same, as are those inside of names;
- times of day, dates, seconds since 1970, ids of processes and tokens, and ports of 127.0.0.1 are masked (`MASKS`);
- runs of spaces and of dashes count as one.

A command that ends with ``&`` goes on; what is shown of it is waited for. Ports of servers (`PORTS`) are
exchanged for free ones, so that two pages can be run at once.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

TOLERANCE = 0.02
ANY = float("inf")
PATIENCE_SECONDS = 600
PORTS = re.compile(r"\b(8080|8722)\b")  # that examples have `sojourn serve` and `sojourn mplane reflect` use
MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]?"), "DATE "),
    (re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "TIME"),
    (re.compile(r"\b1[78]\d{8}\.\d+"), "TIME"),
    (re.compile(r"\[\d+\]"), "[PID]"),
    (re.compile(r"\btoken [0-9a-f]{8}\b"), "token ID"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
    (re.compile(r"([-─═])\1+"), r"\1"),
)
SURE = (re.compile(r"\b(exact total|exact|iotm joint)\b"), "0")  # which of them depends on the machine's processes
SCALES = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NUMBER = re.compile(
    r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:\s?(?:" + "|".join(SCALES) + r")\b)?(?!\w|\.\d)"
)


@dataclass(frozen=True)
class Example:
    """One command of a page, what is shown of its output, and how far numbers may be off."""

    command: str
    shown: tuple[str, ...]
    tolerance: float

    @property
    def goes_on(self) -> bool:
        return self.command.endswith("&")


def examples(text: str) -> list[Example]:
    """The commands of a page's console blocks, in order."""
    found = []
    blocks = re.finditer(
        r"^(?:<!-- figures: (?P<figures>.*?) -->\n+)?(?P<indent> *)```console\n(?P<body>.*?)^ *```",
        text,
        re.MULTILINE | re.DOTALL,
    )
    for block in blocks:
        lines = [line.removeprefix(block["indent"]) for line in block["body"].splitlines()]
        found += list(_of_block(lines, _tolerance(block["figures"])))
    return found


def _tolerance(figures: str | None) -> float:
    if figures is None:
        return TOLERANCE
    if figures == "of one run":
        return ANY
    stated = re.fullmatch(r"within (\d+)%", figures)
    assert stated, f"figures: {figures} is neither 'within N%' nor 'of one run'"
    return int(stated[1]) / 100


def _of_block(lines: list[str], tolerance: float) -> Iterator[Example]:
    at = 0
    while at < len(lines):
        assert lines[at].startswith("$ "), f"a console block begins with a command: {lines[at]}"
        command = lines[at][2:]
        at += 1
        while command.endswith("\\"):
            command = f"{command[:-1]} {lines[at].strip()}"
            at += 1
        end = next((i for i in range(at, len(lines)) if lines[i].startswith("$ ")), len(lines))
        yield Example(command, tuple(line.rstrip() for line in lines[at:end] if line.strip()), tolerance)
        at = end


def difference(example: Example, out: str, err: str = "") -> str | None:
    """What differs between an output and what the page shows of it; None if nothing."""
    printed = [line for line in out.splitlines() if line.strip()]
    noted = [line for line in err.splitlines() if line.strip()]
    first = _first_difference(example.shown, printed, example.tolerance)
    if first is None or _first_difference(example.shown, printed + noted, example.tolerance) is None:
        return None
    return first


def _first_difference(shown: tuple[str, ...], printed: list[str], tolerance: float) -> str | None:
    at, skipping = 0, False
    for line in shown:
        if line.strip() == "…":
            skipping = True
            continue
        while skipping and at < len(printed) and not same_line(line, printed[at], tolerance):
            at += 1
        if at == len(printed):
            return f"shown, but not printed: {line}"
        if not same_line(line, printed[at], tolerance):
            return f"shown:   {line}\nprinted: {printed[at]}"
        at, skipping = at + 1, False
    return None if skipping or at == len(printed) else f"printed, but not shown: {printed[at]}"


def same_line(shown: str, printed: str, tolerance: float = TOLERANCE) -> bool:
    """Whether a line says the same: words alike, numbers within the tolerance."""
    masks = MASKS if tolerance < ANY else (*MASKS, SURE)
    for mask, name in masks:
        shown, printed = mask.sub(name, shown), mask.sub(name, printed)
    words = [NUMBER.sub("\0", " ".join(part.split())) for part in shown.split("…")]
    pattern = r"\s*.*?\s*".join(
        re.escape(part.strip()).replace("\0", f"({NUMBER.pattern})").replace(r"\ ", r"\s+") for part in words
    )
    found = re.fullmatch(pattern, printed.strip())
    numbers = [number for part in shown.split("…") for number in NUMBER.findall(" ".join(part.split()))]
    return found is not None and all(
        _near(number, other, tolerance) for number, other in zip(numbers, found.groups(), strict=True)
    )


def _near(shown: str, printed: str, tolerance: float) -> bool:
    if tolerance == ANY:
        return True
    if re.fullmatch(r"\d{4,}", shown):
        return shown == printed
    (value, last), (other, other_last) = _value(shown), _value(printed)
    return abs(value - other) <= max(tolerance * abs(value), 1.001 * max(last, other_last))


def _value(text: str) -> tuple[float, float]:
    """A number in its base unit, and what one in its last digit is worth; whole numbers are counts, and exact."""
    number, unit = re.fullmatch(r"(.*?)\s?([A-Za-zµ]*)", text.replace(",", "")).groups()  # type: ignore[union-attr]
    if unit not in SCALES:
        number, unit = text.replace(",", ""), ""
    scale = SCALES.get(unit, 1)
    digits = number.partition("e")[0].partition(".")[2]
    return float(number) * scale, scale * 10.0 ** -len(digits) if digits or unit else 0.0


class Reader:
    """A shell in a folder, in which a page's commands are entered one after the other."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.ports = {port: str(_free_port()) for port in ("8080", "8722")}
        self.answers = folder / ".answers"
        self.answers.mkdir()
        self.entered = 0
        self.shell = subprocess.Popen(
            ["bash", "--norc", "-m"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**environment},
            text=True,
            start_new_session=True,
        )

    def enter(self, example: Example) -> None:
        """Run a command and compare; AssertionError with what differs."""
        self.entered += 1
        out, err, code = (self.answers / f"{self.entered}.{kind}" for kind in ("out", "err", "code"))
        command = self._with_free_ports(example.command)
        assert self.shell.stdin is not None
        self.shell.stdin.write(
            f"{{ {command}\n}} > {out} 2> {err} < /dev/null; echo $? > {code}.new; mv {code}.new {code}\n"
        )
        self.shell.stdin.flush()
        self._wait_for(code, example.command)
        said = err.read_text()
        assert code.read_text() == "0\n", f"$ {example.command}\n{out.read_text()}{said}"
        assert "Traceback" not in said, f"$ {example.command}\n{said}"
        if example.shown:
            shown = tuple(self._with_free_ports(line) for line in example.shown)
            self._compare(replace(example, shown=shown), out, err)

    def _with_free_ports(self, text: str) -> str:
        return PORTS.sub(lambda found: self.ports[found[0]], text)

    def _wait_for(self, code: Path, command: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not code.exists():
            assert time.monotonic() < end, f"not done after {PATIENCE_SECONDS} s: $ {command}"
            assert self.shell.poll() is None, f"the shell ended: $ {command}"
            time.sleep(0.02)

    def _compare(self, example: Example, out: Path, err: Path) -> None:
        end = time.monotonic() + (120 if example.goes_on else 0)
        while True:
            found = difference(example, out.read_text(), err.read_text())
            if found is None:
                return
            if time.monotonic() >= end:
                raise AssertionError(f"$ {example.command}\n{found}\n\n{out.read_text()}{err.read_text()}")
            time.sleep(0.1)

    def leave(self) -> None:
        """End what still runs: all that was started has the shell's session, even where a command never ended."""
        others = [process for process in self._session() if process != self.shell.pid]
        _send(others, signal.SIGTERM)
        end = time.monotonic() + 20
        while set(others) & set(self._session()) and time.monotonic() < end:
            time.sleep(0.1)
        _send(self._session(), signal.SIGKILL)
        assert self.shell.stdin is not None
        self.shell.stdin.close()
        self.shell.wait()

    def _session(self) -> list[int]:
        """The processes of the shell's session that are not dead."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(session) == self.shell.pid and state != "Z":
                found.append(int(stat.parent.name))
        return found


def _send(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
