"""The frame of every page: navigation, range of time, panels that fill and renew themselves.

Guarantee: a page is there at once and its panels follow; one that cannot be filled says why, and the others stay. What
a panel has shown stays when renewing it fails. A panel asks again only while its page is open, never twice at a time,
and what it has asked ends with the page. A session that has ended leads to signing in, and from there back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from nicegui import ui

from sojourn.core.errors import SojournError
from sojourn.web.pages.parts import Drawn, Note, Part, redraw, tag
from sojourn.web.pages.unit import RefusedError
from sojourn.web.pages.view import RANGES, View, range_name

LIVE_SECONDS = 5.0
Fill = Callable[[], Awaitable[Sequence[Part]]]
NAVIGATION = {
    "/": ("Overview", ("/",)),
    "/segments": ("Segments", ("/segments", "/segment")),
    "/nodes": ("Nodes", ("/nodes", "/node")),
    "/collections": ("Tomography", ("/collections", "/collection")),
    "/networks": ("Network", ("/networks", "/network")),
    "/captures": ("Captures", ("/captures",)),
    "/query": ("Query", ("/query",)),
}
HEAD = '<link rel="stylesheet" href="/_sojourn/style.css"><script src="/_sojourn/script.js"></script>'
BROKEN = "Something went wrong here; the query unit's log has it."
_LOG = logging.getLogger("sojourn.pages")


def page(path: str, title: str) -> Callable[[Callable[[View], None]], Callable[[View], None]]:
    """Put a function's panels at a path, within the frame."""

    def register(build: Callable[[View], None]) -> Callable[[View], None]:
        def shown(request: Request) -> None:
            view = View(request)
            ui.dark_mode(view.dark)
            ui.add_head_html(HEAD)
            _frame(view, title, build)

        shown.__name__ = build.__name__
        ui.page(path, title=f"{title} – Sojourn")(shown)
        return build

    return register


def _frame(view: View, title: str, build: Callable[[View], None]) -> None:
    tag("a", "To the content", "skip", href="#content")
    with tag("header", "", "top"):
        tag("a", "Sojourn", "brand", href="/")
        with tag("nav", aria_label="Pages"):
            for path, (name, paths) in NAVIGATION.items():
                if path in ("/segments", "/networks") and not view.sees_all:
                    continue  # they are about several nodes
                here = "page" if view.path in paths else None
                tag("a", name, href=view.link(path), aria_current=here)
        with tag("div", "", "who"):
            tag("span", _who(view), "name")
            tag("button", "◐", "quiet", type="button", data_theme="1", aria_label="Light or dark")
            with tag("form", method="post", action="/sign-out"):
                tag("button", "Sign out", "quiet", type="submit")
    # What holds all of a page is the site's own <main>.
    with tag("div", "", "page", id="content", tabindex="-1"):
        try:
            build(view)
        except SojournError as error:
            heading(title, "")
            Note(str(error), "bad").draw(dark=view.dark)
        except Exception:
            _LOG.exception("the page %s could not be put together", view.path)
            Note(BROKEN, "bad").draw(dark=view.dark)


def _who(view: View) -> str:
    token = view.token
    return f"{token.name} ({token.role}{' of ' + ', '.join(token.tags) if token.tags else ''})"


def heading(title: str, hint: str, *, ranged: View | None = None) -> None:
    """The page's name, what it is about, and where it has one, its range of time to choose."""
    with tag("div", "", "head"):
        with tag("div"):
            tag("h1", title)
            if hint:
                tag("p", hint, "hint")
        if ranged is not None:
            _range_form(ranged)


def _range_form(view: View) -> None:
    known = {**RANGES}
    with tag("form", "", "fields", method="get", action=view.path, aria_label="Range of time"):
        keep_fields(view, "from", "to")
        if view.asked_to == "now":
            known.setdefault(view.asked_from, range_name(view.asked_from))
            with tag("div", "", "field"):
                tag("label", "The last", for_="range-from")
                options("range-from", "from", known, view.asked_from, submits=True)
        else:
            for name, text, value in (("from", "From", view.asked_from), ("to", "To", view.asked_to)):
                with tag("div", "", "field"):
                    tag("label", text, for_=f"range-{name}")
                    tag("input", id=f"range-{name}", name=name, value=value, size="18", required=True)
            tag("button", "Show", type="submit")
            others = [(name, value) for name, value in view.params.multi_items() if name not in ("from", "to")]
            tag("a", "up to now", href=f"{view.path}?{urlencode(others)}")


def keep_fields(view: View, *own: str) -> None:
    """All that the address says but for a form's own fields, so that the form leaves it as it is."""
    for name, value in view.params.multi_items():
        if name not in own:
            tag("input", type="hidden", name=name, value=value)


def text_field(element: str, label: str, name: str, value: str = "", *, classes: str = "field", **more: Any) -> None:
    """A field of a form, with its label."""
    with tag("div", "", classes):
        tag("label", label, for_=element)
        tag("input", id=element, name=name, value=value, **more)


def options(element: str, name: str, known: Mapping[str, str], chosen: str, *, submits: bool = False) -> None:
    """A choice of a form; with `submits` it sends it when it is changed."""
    with tag("select", id=element, name=name, data_submit="1" if submits else None):
        for value, text in known.items():
            tag("option", text, value=value, selected=True if value == chosen else None)


def section(title: str, hint: str = "") -> Any:
    """A titled card of the page's own, such as one with a form; a context."""
    card = tag("section", "", "card wide", aria_label=title)
    with card, tag("header"):
        tag("h2", title)
        if hint:
            tag("p", hint, "hint")
    return card


def panels() -> Any:
    """Where panels of a page lie, side by side where there is room; a context."""
    return tag("div", "", "panels")


async def renew_all(some: Sequence[Panel]) -> None:
    """Fill several panels now, such as those that one slider is about."""
    await asyncio.gather(*(one.renew() for one in some))


class Panel:
    """A titled part of a page that fills itself once the page is there, and again every so many seconds if told."""

    def __init__(
        self,
        view: View,
        title: str,
        fill: Fill,
        *,
        every: float | None = None,
        wide: bool = False,
        hint: str = "",
        bare: bool = False,
    ) -> None:
        """A `bare` one is part of a card that has a heading of its own."""
        self._view, self._title, self._fill = view, title, fill
        self._drawn: list[tuple[object, Drawn]] = []
        classes = "bare" if bare else "card wide" if wide else "card"
        with tag("div" if bare else "section", "", classes, aria_label=None if bare else title, data_panel=title):
            if not bare:
                with tag("header"):
                    tag("h2", title)
                    if hint:
                        tag("p", hint, "hint")
            self._trouble = tag("p", "", "notice warn")
            self._trouble.set_visibility(False)
            self._body = tag("div", "", "body")
            with self._body:
                tag("p", "Loading …", "hint")
        if every is None:
            ui.timer(0, self.renew, once=True)
        else:
            ui.timer(every, self.renew)

    async def renew(self) -> None:
        """Fill it now."""
        try:
            parts = await self._fill()
        except RefusedError as error:
            if error.status == 401:
                ui.navigate.reload()  # which leads to signing in, with why, and from there back
                return
            self._tell(str(error))
        except SojournError as error:
            self._tell(str(error))
        except Exception:
            _LOG.exception("the panel %s could not be filled", self._title)
            self._tell(BROKEN)
        else:
            self._trouble.set_visibility(False)
            redraw(self._body, self._drawn, parts, dark=self._view.dark)

    def _tell(self, what: str) -> None:
        """Say why there is nothing, or nothing newer."""
        if not self._drawn:
            self._body.clear()
        self._trouble.text = what
        self._trouble.set_visibility(True)
