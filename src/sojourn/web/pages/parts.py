"""What panels are made of: facts, tables, charts, notes. A page is a function from answers to such parts.

Parts are plain descriptions. A panel draws them the first time, and after that hands each drawn part its new
description, so that a table keeps its order, filter and scroll, and a chart its zoom.

Guarantee: texts that come from nodes are shown as text. They reach the browser as JSON and become text nodes there; no
part takes HTML, keys of the dictionaries handed on are ours, and what runs in the browser (keys with a colon) are
expressions written here.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from sojourn.web.charts.tokens import DARK, Option, in_theme, swaps

Tone = Literal["", "good", "bad", "warn"]
Kind = Literal["text", "duration", "bytes", "share", "count", "number", "time", "ago", "state", "trend"]
SMALL_TABLE = 12  # rows that are all shown, without a field to search in
WIDE = 200  # pixels at least of a column that takes what room there is
_TEXTS = ("text", "state", "trend")


def tag(name: str, text: str = "", classes: str = "", /, **attributes: Any) -> TextElement:
    """An element of HTML with a text; underscores of attributes' names stand for hyphens."""
    made = TextElement(tag=name, text=text)
    if classes:
        made.classes(classes)
    for attribute, value in attributes.items():
        if value is not None:
            made._props[attribute.rstrip("_").replace("_", "-")] = value
    return made


class Drawn(Protocol):
    """A part on a page."""

    def renew(self, part: Any) -> None:
        """Show another description of the same shape."""


class Part(Protocol):
    """A description of something to show."""

    @property
    def shape(self) -> object:
        """What has to be equal for a drawn part to be renewed."""

    def draw(self, *, dark: bool) -> Drawn:
        """Put it on the page, where that is being drawn."""


@dataclass(frozen=True)
class Fact:
    """A number or word with its name, and a remark below."""

    name: str
    value: str
    hint: str = ""
    tone: Tone = ""
    href: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts side by side."""

    facts: Sequence[Fact]

    @property
    def shape(self) -> object:
        return "facts"

    def draw(self, *, dark: bool) -> Drawn:  # noqa: ARG002
        return _DrawnFacts(self)


class _DrawnFacts:
    def __init__(self, part: Facts) -> None:
        self._list = tag("dl", "", "facts")
        self._part: Facts | None = None
        self.renew(part)

    def renew(self, part: Facts) -> None:
        if part == self._part:
            return
        self._part = part
        self._list.clear()
        with self._list:
            for fact in part.facts:
                with tag("div"):
                    tag("dt", fact.name)
                    with tag("dd", "" if fact.href else fact.value, fact.tone):
                        if fact.href:
                            tag("a", fact.value, href=fact.href)
                        if fact.hint:
                            tag("small", fact.hint)


@dataclass(frozen=True)
class Note:
    """A sentence: a remark, a warning, or what to do next with the command for it."""

    text: str
    tone: Tone = ""
    command: str = ""

    @property
    def shape(self) -> object:
        return "note", self.tone, bool(self.command)

    def draw(self, *, dark: bool) -> Drawn:  # noqa: ARG002
        return _DrawnNote(self)


class _DrawnNote:
    def __init__(self, part: Note) -> None:
        classes = f"notice {part.tone}" if part.tone else "hint"
        self._text = tag("p", part.text, classes, role="alert" if part.tone == "bad" else None)
        self._command = tag("pre", part.command, tabindex="0") if part.command else None

    def renew(self, part: Note) -> None:
        self._text.text = part.text
        if self._command is not None:
            self._command.text = part.command


@dataclass(frozen=True)
class Chart:
    """A chart of `charts`, drawn in the page's theme."""

    option: Option
    height: int = 300

    @property
    def shape(self) -> object:
        return "chart", self.height

    def draw(self, *, dark: bool) -> Drawn:
        return _DrawnChart(self, dark=dark)


class _DrawnChart:
    def __init__(self, part: Chart, *, dark: bool) -> None:
        self._dark = dark
        self._option = part.option
        self._chart = ui.echart(self._shown(part.option)).classes("chart").style(f"height: {part.height}px")
        self._chart._props["role"] = "img"
        self._chart._props["aria-label"] = _described(part.option)

    def renew(self, part: Chart) -> None:
        if part.option == self._option:
            return
        self._option = part.option
        self._chart._props["options"] = self._shown(part.option)
        self._chart._props["aria-label"] = _described(part.option)
        self._chart.update()

    def _shown(self, option: Option) -> Option:
        return in_theme(option, DARK) if self._dark else dict(option)


def _described(option: Option) -> str:
    return str(option.get("aria", {}).get("label", {}).get("description", "a chart"))


@dataclass(frozen=True)
class Column:
    """A column of a table; `link` is the page that its cells lead to, and the fields that name the row there."""

    field: str
    heading: str
    kind: Kind = "text"
    width: int = 0
    link: tuple[str, Mapping[str, str]] | None = None
    hint: str = ""
    sort: Literal["", "asc", "desc"] = ""

    def definition(self) -> dict[str, Any]:
        """As AG Grid has it."""
        is_text = self.kind in _TEXTS
        made: dict[str, Any] = {
            "field": self.field,
            "headerName": self.heading,
            "filter": "agTextColumnFilter" if is_text else "agNumberColumnFilter",
            "suppressHeaderFilterButton": True,
            "cellDataType": False,
            "flex": 4 if is_text and not 0 < self.width < WIDE else 1,
            "minWidth": self.width or 150,
        }
        if not is_text:
            made |= {"type": "rightAligned", ":valueFormatter": f"(p) => sojourn.{self.kind}(p.value)"}
            # What is written there has units, as what is shown: more than 5 ms.
            made["filterParams"] = {"defaultOption": "greaterThan", ":numberParser": "sojourn.parse"}
            made["filterParams"]["allowedCharPattern"] = "[0-9a-zA-Zµ%. -]"
        if self.kind in ("state", "trend"):
            made[":cellRenderer"] = f"sojourn.{self.kind}"
        if self.kind == "trend":
            made |= {"sortable": False, "filter": False}
        if self.link is not None:
            page, fields = self.link
            made[":cellRenderer"] = f"sojourn.link({json.dumps(page)}, {json.dumps(dict(fields))})"
        if self.hint:
            made["headerTooltip"] = self.hint
        if self.sort:
            made["sort"] = self.sort
        return made


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted, filtered and searched in the browser; `label` says of what they are."""

    label: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    key: Sequence[str] = ()
    height: int = 460

    @property
    def has_numbers(self) -> bool:
        """Whether it can be filtered by more than texts."""
        return any(one.kind not in _TEXTS for one in self.columns)

    @property
    def is_small(self) -> bool:
        """Whether it is shown as a whole."""
        return len(self.rows) <= SMALL_TABLE

    @property
    def shape(self) -> object:
        return (
            "table",
            self.label,
            self.is_small,
            tuple((one.field, one.kind, one.link is None) for one in self.columns),
        )

    def draw(self, *, dark: bool) -> Drawn:  # noqa: ARG002
        return _DrawnTable(self)


class _DrawnTable:
    def __init__(self, part: Table) -> None:
        self._rows = list(part.rows)
        with tag("div", "", "table"):
            search = None
            if not part.is_small:
                with tag("div", "", "tools").style("margin-bottom: .5rem"):
                    search = tag("input", type="search", placeholder="Search", aria_label=f"Search {part.label}")
                    self._count = tag("span", "", "hint")
            self._grid = ui.aggrid(self._options(part), auto_size_columns=False)
            self._grid._props |= {"role": "group", "aria-label": part.label}
            if not part.is_small:
                self._grid.style(f"height: {part.height}px")
            if search is not None:
                set_filter = f"(e) => getElement({self._grid.id}).api.setGridOption('quickFilterText', e.target.value)"
                search.on("input", js_handler=set_filter)
        self._tell(part)

    def _options(self, part: Table) -> dict[str, Any]:
        options: dict[str, Any] = {
            "columnDefs": [column.definition() for column in part.columns],
            "rowData": self._rows,
            "defaultColDef": {
                "sortable": True,
                "resizable": True,
                "floatingFilter": not part.is_small,
                "suppressFloatingFilterButton": False,
                "suppressHeaderMenuButton": True,
            },
            "domLayout": "autoHeight" if part.is_small else "normal",
            "suppressCellFocus": False,
            "enableCellTextSelection": True,
            "tooltipShowDelay": 300,
            "animateRows": False,
            "cacheQuickFilter": True,
            "headerHeight": 36,
            "floatingFiltersHeight": 38,
            "overlayNoRowsTemplate": "<span>There is nothing here.</span>",
            "rowHeight": 36,
            "suppressFieldDotNotation": True,
        }
        if part.key:
            of_row = " + '\\n' + ".join(f"p.data[{json.dumps(name)}]" for name in part.key)
            options[":getRowId"] = f"(p) => String({of_row})"
        return options

    def _tell(self, part: Table) -> None:
        if not part.is_small:
            below = "; under a number's heading: more than, such as 5 ms" if part.has_numbers else ""
            self._count.text = f"{len(part.rows):,} rows{below}"

    def renew(self, part: Table) -> None:
        rows = list(part.rows)
        if rows == self._rows:
            if ages := [one.field for one in part.columns if one.kind == "ago"]:
                self._grid.run_grid_method("refreshCells", {"columns": ages, "force": True})
            return
        self._rows = rows
        self._tell(part)
        # What is kept here is what a browser that comes back is given; the one that is there gets the rows alone.
        self._grid._props["options"]["rowData"] = rows
        self._grid.run_grid_method("setGridOption", "rowData", rows)


@dataclass(frozen=True)
class Snippets:
    """The same question elsewhere, to be copied: on a command line, as a request, in Python."""

    texts: Mapping[str, str]

    @property
    def shape(self) -> object:
        return "snippets", tuple(self.texts)

    def draw(self, *, dark: bool) -> Drawn:  # noqa: ARG002
        return _DrawnSnippets(self)


class _DrawnSnippets:
    def __init__(self, part: Snippets) -> None:
        self._texts: dict[str, TextElement] = {}
        with tag("div", "", "snippets"):
            for name, text in part.texts.items():
                with tag("div", "", "snippet"):
                    tag("strong", name)
                    shown = self._texts[name] = tag("pre", text, tabindex="0", id=f"snippet-{name.lower()}")
                    tag("button", "Copy", type="button", data_copy=shown._props["id"], aria_label=f"Copy {name}")

    def renew(self, part: Snippets) -> None:
        for name, text in part.texts.items():
            self._texts[name].text = text


@dataclass(frozen=True)
class Progress:
    """How far work is, and what is done now."""

    text: str
    share: float

    @property
    def shape(self) -> object:
        return "progress"

    def draw(self, *, dark: bool) -> Drawn:  # noqa: ARG002
        return _DrawnProgress(self)


class _DrawnProgress:
    def __init__(self, part: Progress) -> None:
        with tag("div", "", "progress"):
            self._text = tag("span", part.text, role="status")
            self._bar = tag("progress", "", max="1", value=f"{part.share:.3f}", aria_label="Progress")

    def renew(self, part: Progress) -> None:
        self._text.text = part.text
        self._bar._props["value"] = f"{part.share:.3f}"
        self._bar.update()


@dataclass(frozen=True)
class Legend:
    """What colours of a chart mean: a colour of the light theme, and a word."""

    entries: Sequence[tuple[str, str]]

    @property
    def shape(self) -> object:
        return "legend", tuple(self.entries)

    def draw(self, *, dark: bool) -> Drawn:
        swap = swaps(DARK) if dark else {}
        with tag("ul", "", "legend"):
            for colour, text in self.entries:
                with tag("li"):
                    tag("i", "", aria_hidden="true").style(f"background: {swap.get(colour, colour)}")
                    tag("span", text)
        return self

    def renew(self, part: Any) -> None:
        """It is as it was: another one has another shape."""


@dataclass(frozen=True)
class Slider:
    """A number between bounds, part of the page's address as `name`; `change` is told where it is moved to."""

    label: str
    name: str
    most: int
    value: int
    text: str
    change: Callable[[int], Awaitable[None]]

    @property
    def shape(self) -> object:
        return "slider", self.name, self.most

    def draw(self, *, dark: bool) -> Drawn:  # noqa: ARG002
        return _DrawnSlider(self)


class _DrawnSlider:
    def __init__(self, part: Slider) -> None:
        self._change = part.change
        element = f"slider-{part.name}"
        with tag("div", "", "slider"):
            tag("label", part.label, for_=element)
            self._input = tag(
                "input", id=element, type="range", min="0", max=str(part.most), step="1", value=str(part.value)
            )
            self._text = tag("output", part.text, for_=element)
        moved = f"(e) => {{ sojourn.remember({json.dumps(part.name)}, e.target.value); emit(Number(e.target.value)); }}"
        self._input.on("input", self._moved, js_handler=moved, throttle=0.1)

    async def _moved(self, event: Any) -> None:
        await self._change(int(event.args))

    def renew(self, part: Slider) -> None:
        # Where its knob is, is for who moves it to say.
        self._change = part.change
        self._text.text = part.text


def redraw(body: Element, drawn: list[tuple[object, Drawn]], parts: Sequence[Part], *, dark: bool) -> None:
    """Show parts in an element that showed others before: renewed where they have the same shapes, else anew."""
    if [shape for shape, _ in drawn] == [part.shape for part in parts] and drawn:
        for (_, one), part in zip(drawn, parts, strict=True):
            one.renew(part)
        return
    body.clear()
    drawn.clear()
    with body:
        drawn.extend((part.shape, part.draw(dark=dark)) for part in parts)
