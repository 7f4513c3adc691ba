"""How `sojourn top` looks: one frame as lines of text, and frame after frame on a terminal until q or Ctrl-C."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import TYPE_CHECKING, TypeAlias

from sojourn.cli.capture.flows import flow_end
from sojourn.cli.output import TableColumn, console, laid_out, loss_style
from sojourn.cli.top.frame import Frame, FrameSource, History, Sort, sparkline
from sojourn.cli.top.keyboard import QUIT, single_keys
from sojourn.core.errors import harmless
from sojourn.core.executors.interrupts import stopping_on_interrupt
from sojourn.core.units import format_clock, format_duration, format_rate, plural

if TYPE_CHECKING:
    from rich.console import RenderableType

Line: TypeAlias = Sequence[tuple[str, str]]  # texts with their styles

WAIT_SECONDS = 0.1
HEAD_LINES = 4  # what is watched, what it comes to, nothing, titles
CLOSE_SECONDS = 2.0  # what does not end by then ends with the program
KEYS = {"d": Sort.DELAY, "p": Sort.P99, "l": Sort.LOSS, "r": Sort.RATE}
_WORDS = {Sort.DELAY: "delay", Sort.P99: "p99", Sort.LOSS: "loss", Sort.RATE: "rate"}


def _shown(show: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "–" if value is None else show(value)


def _per_second(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 100 else f"{value:.3g}/s"


_COLUMNS = [
    TableColumn("flow", "flow", justify="left"),
    TableColumn("trend", "trend", rank=2),
    TableColumn("bits_per_second", "rate", _shown(format_rate), rank=3),
    TableColumn("packets_per_second", "packets", _shown(_per_second), rank=4),
    TableColumn("mean_ns", "delay", _shown(format_duration), rank=0),
    TableColumn("low_ns", "from", _shown(format_duration), rank=5),
    TableColumn("high_ns", "to (95 %)", _shown(format_duration), rank=5),
    TableColumn("p99_ns", "p99", _shown(format_duration), rank=1),
    TableColumn("loss", "loss", _shown("{:.2%}".format), rank=1, style=lambda loss: loss_style(loss or 0)),
    TableColumn("samples", "samples", _shown("{:,.0f}".format), rank=6),
]


def flow_name(row: dict[str, object]) -> str:
    """A flow in a word or two.

    >>> flow_name({"src_ip": "10.0.0.1", "src_port": 80, "dest_ip": "10.0.0.2", "dest_port": 4711, "protocol": "tcp"})
    '10.0.0.1:80 > 10.0.0.2:4711 tcp'
    """
    ends = {"src_ip": None, "src_port": 0, "dest_ip": None, "dest_port": 0} | row
    return f"{flow_end(ends, 'src')} > {flow_end(ends, 'dest')} {row.get('protocol') or ''}".rstrip()


@dataclass
class View:
    """What is shown of a source: sorted by what, how many rows, and how flows fared in the latest frames."""

    source: FrameSource
    sort: Sort
    limit: int | None = None
    history: History = field(default_factory=History)

    def lines(self, width: int | None = None, height: int | None = None) -> Iterator[Line]:
        """The latest frame: a head, the table, notes; fitted into a screen, if there is one."""
        if not self.history.frames:
            yield [(f"{harmless(self.source.title)}: measuring, the first numbers are on their way", "")]
            return
        frame = self.history.frames[-1]
        yield from self._head(frame)
        notes = [line for note in frame.notes for line in _note_lines(note, width)]
        if len(frame):
            room = None if height is None else max(1, height - HEAD_LINES - len(notes))
            limit = min((n for n in (self.limit, room) if n is not None), default=None)
            yield []
            yield from self._table(frame, limit, width)
            left = len(frame) - min(len(frame), limit or len(frame))
            if left and room is None:
                yield [(f"… and {plural(left, 'flow')} more", "dim")]
        yield from notes

    def _head(self, frame: Frame) -> Iterator[Line]:
        known = {name: value for name, value in frame.total.items() if value is not None and value == value}
        shown = []
        if "packets_per_second" in known:
            shown.append(f"{_per_second(known['packets_per_second'])} packets")
        if "bits_per_second" in known:
            shown.append(format_rate(known["bits_per_second"]))
        for name, word in (("mean_ns", self.source.delays), ("p99_ns", "p99")):
            if name in known:
                shown.append(f"{word} {format_duration(known[name])}")
        if "loss" in known:
            shown.append(f"loss {known['loss']:.2%}")
        flows = plural(len(frame), "flow")
        yield [(harmless(self.source.title), "bold"), (f"  {format_clock(frame.end_ns)}  {flows}", "")]
        yield [(", ".join(shown), "")]

    def _table(self, frame: Frame, limit: int | None, width: int | None) -> Iterator[Line]:
        order, chosen = frame.order(self.sort, limit), frame.sort_name(self.sort)
        trends = self.history.trends(chosen, frame.ids[order])
        rows = list(frame.rows(order))
        for row, trend in zip(rows, trends, strict=True):
            row |= {"flow": flow_name(row), "trend": sparkline(trend)}
        given = {"flow", *frame.columns, *(["trend"] if len(self.history.frames) > 1 else [])}
        named = [
            replace(column, title=self.source.delays) if column.name == "mean_ns" else column
            for column in _COLUMNS
            if column.name in given
        ]
        columns = [
            replace(column, title=f"▼ {column.title}", rank=0) if column.name == chosen else column for column in named
        ]
        yield from laid_out(columns, rows, width)

    def footer(self) -> Line:
        keys = [f"{key} {_WORDS[sort]}" for key, sort in KEYS.items() if sort in self.source.sorts]
        return [(f"{QUIT} quit    sort: {'  '.join(keys)}", "dim")]

    def press(self, key: str) -> bool:
        """Heed a key; whether it ends the view."""
        wanted = KEYS.get(key.lower())
        if wanted in self.source.sorts:
            self.sort = wanted or self.sort
        return key.lower() == QUIT


def _note_lines(note: str, width: int | None) -> list[Line]:
    """A note in as many lines as it needs: what it says to do is at its end."""
    lines = [harmless(note)] if width is None else wrap(harmless(note), max(width - 2, 10))
    return [[(("! " if place == 0 else "  ") + line, "yellow")] for place, line in enumerate(lines)]


def print_frame(view: View, frame: Frame) -> None:
    """One frame on stdout: in colours and fitted where that is a terminal."""
    view.history.frames.append(frame)
    screen = console() if sys.stdout.isatty() else None
    for line in view.lines(screen.width if screen else None):
        if screen is None:
            print("".join(text for text, _style in line).rstrip())
        else:
            screen.print(_text([line]))


def _text(lines: Sequence[Line]) -> RenderableType:
    """Lines of Rich that are cut where the screen ends."""
    from rich.text import Text

    whole = Text("\n", no_wrap=True, overflow="crop").join(Text.assemble(*line) for line in lines)
    whole.no_wrap, whole.overflow = True, "crop"
    return whole


class _Feed:
    """A source's frames, measured in a thread of its own while keys are heeded."""

    def __init__(self, source: FrameSource) -> None:
        self._source = source
        self._came: queue.Queue[Frame | BaseException | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for frame in self._source.frames():
                self._came.put(frame)
            self._came.put(None)
        except BaseException as failure:
            self._came.put(failure)

    def new(self) -> Iterator[Frame | None]:
        """What has come since; None when there is no more."""
        while True:
            try:
                one = self._came.get_nowait()
            except queue.Empty:
                return
            if isinstance(one, BaseException):
                raise one
            yield one

    def close(self) -> None:
        self._source.stop()
        self._thread.join(CLOSE_SECONDS)


def watch(view: View) -> None:
    """Show frames on the terminal until q or Ctrl-C; it is then as it was before."""
    from rich.live import Live

    screen, ended = console(), threading.Event()
    feed = _Feed(view.source)
    try:
        with (
            stopping_on_interrupt(ended.set),
            single_keys() as pressed,
            Live(console=screen, screen=True, auto_refresh=False) as live,
        ):
            drawn: tuple[object, ...] = ()
            frames = 0
            while not ended.is_set():
                for frame in feed.new():
                    if frame is None:
                        return
                    view.history.frames.append(frame)
                    frames += 1
                state = frames, view.sort, screen.size
                if state != drawn:
                    live.update(_text(_page(view, screen.width, screen.height)), refresh=True)
                    drawn = state
                if any(view.press(key) for key in pressed(WAIT_SECONDS)):
                    return
    finally:
        feed.close()


def _page(view: View, width: int, height: int) -> list[Line]:
    """A whole screen: the footer stands at the bottom."""
    lines = [*view.lines(width, height - 1)][: height - 1]
    return [*lines, *[[] for _ in range(height - 1 - len(lines))], view.footer()]
