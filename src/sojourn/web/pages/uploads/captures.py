"""Captures uploaded in the browser: measured as on the command line, with the same report to look at or download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sojourn.core.units import format_age, format_bytes, format_duration
from sojourn.web.pages.network.listing import sending
from sojourn.web.pages.parts import Column, Fact, Facts, Note, Part, Progress, Table, tag
from sojourn.web.pages.shell import Panel, heading, page, panels, section, text_field
from sojourn.web.pages.unit import RefusedError, named
from sojourn.web.pages.view import View

WATCH_SECONDS = 1.0
CAPTURES = ".pcap,.pcapng,.cap,.gz,.zst,.xz,.lz4"
TRACES = ".csv,.jsonl,.ndjson,.json,.gz,.parquet"
KINDS = {"measure": "one-way delay", "rtt": "round trips", "tomography": "tomography"}
_OFF = "This query unit takes no uploads. Whoever runs it allows them, and how much they may take together:"
_STEPS = {"receiving": "its files are on their way", "waiting": "waiting for a turn"}


@page("/captures", "Captures")
def captures(view: View) -> None:
    """A form, the upload that was begun with it, and all others of this token."""
    heading("Captures", "Two captures of the same packets, or one: how long packets took, and how many were lost.")
    with panels():
        shown_upload(view)
        with section("Measure captures", "pcap or pcapng, compressed or not; of one alone round trips are measured"):
            if not view.takes_uploads:
                Note(_OFF, command="sojourn serve --uploads 2GB --keep-uploads 1h").draw(dark=view.dark)
                Note("On a command line: sojourn measure ingress.pcap egress.pcap --report report.html").draw(
                    dark=view.dark
                )
            else:
                _form()
        if view.takes_uploads:
            Panel(view, "Your uploads", partial(own_uploads, view, "/captures"), every=2 * WATCH_SECONDS, wide=True)


def _form() -> None:
    with tag("form", "", "fields", data_upload="captures"):
        text_field(
            "capture-1", "At the sender", "sender", type="file", accept=CAPTURES, required=True, classes="field file"
        )
        text_field("capture-2", "At the receiver, if there is one", "receiver", type="file",
                   accept=CAPTURES, classes="field file")  # fmt: skip
        text_field(
            "capture-where", "Filter, in tcpdump's syntax", "where", placeholder="tcp port 443", maxlength="1000"
        )
        with tag("div", "", "check"):
            tag("input", id="capture-reverse", name="reverse", type="checkbox")
            tag("label", "from the receiver to the sender", for_="capture-reverse")
        tag("button", "Measure", type="submit")
        sending()


def trace_form(view: View) -> None:
    """A trace of a sink, to be reconstructed at once, without a node or a token for one."""
    with section(
        "A trace of your own", "CSV, JSON lines or Parquet of origin, seq, path, t0_s, t_sink_s, sum_of_delays_s"
    ):
        if not view.takes_uploads:
            Note(_OFF, command="sojourn serve --uploads 2GB").draw(dark=view.dark)
            return
        with tag("form", "", "fields", data_upload="trace"):
            text_field("trace-file", "Trace", "trace", type="file", accept=TRACES, required=True, classes="field file")
            tag("button", "Reconstruct", type="submit")
            sending()


def shown_upload(view: View) -> None:
    """The upload that the address is about: how far it is, then what came of it."""
    if view.param("upload") and view.takes_uploads:
        Panel(view, "This upload", partial(one_upload, view, view.param("upload")), every=WATCH_SECONDS, wide=True)


async def one_upload(view: View, upload_id: str) -> Sequence[Part]:
    """Its progress, its report, or why there is none."""
    try:
        found = await view.unit.get(named("/api/v1/uploads/{}", upload_id))
    except RefusedError as error:
        if error.status != 404:
            raise
        return [Note("This upload has been removed: reports are kept for a while only. Upload it again below.", "warn")]
    files = Note(" → ".join(found["files"].values()))
    if found["state"] == "failed":
        return [files, Note(found["error"], "bad")]
    if found["state"] != "done":
        return [files, Progress(_STEPS.get(found["state"], found["step"]), found["share"])]
    facts = [
        Fact("Report", "open it", hint=format_bytes(found["size_bytes"]), href=f"/report?id={upload_id}"),
        Fact("Took", format_duration(found["took_ns"])),
        Fact("Kept until", view.time(found["expires_ns"])),
    ]
    warned = [Note(text.removeprefix("warning: "), "warn") for text in found["lines"] if text.startswith("warning: ")]
    told = [Note(text) for text in found["lines"] if not text.startswith("warning: ")]
    named_there = any(note.text.startswith(files.text) for note in told)
    return [*([] if named_there else [files]), Facts(facts), *told, *warned]


async def own_uploads(view: View, path: str) -> Sequence[Part]:
    """All uploads of this token."""
    found = await view.unit.get("/api/v1/uploads")
    room = f"Yours may take {format_bytes(found['most_bytes'])} together"
    kept = f"captures are removed once they are measured, reports after {format_age(found['keep_ns'])}."
    if not found["uploads"]:
        return [Note(f"There is none. {room}; {kept}")]
    columns = [
        Column("files", "Files", link=(path, {"upload": "id"})),
        Column("kind", "Measured", width=140),
        Column("state", "State", kind="state", width=115),
        Column("report", "Report", width=110, link=("/report", {"id": "id"})),
        Column("created_ns", "Begun", kind="ago", width=120),
        Column("expires_ns", "Kept until", kind="time", width=170),
        Column("size_bytes", "Size", kind="bytes", width=100),
    ]
    rows = [_row(one) for one in found["uploads"]]
    used = sum(one["size_bytes"] for one in found["uploads"])
    return [
        Table("your uploads", columns, rows, key=("id",), height=340),
        Note(f"{room}, they take {format_bytes(used)}; {kept}"),
        _Removal(tuple((one["id"], _called(view, one)) for one in found["uploads"]), path),
    ]


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: one[name] for name in ("id", "state", "created_ns", "expires_ns", "size_bytes")}
    report = "open" if one["state"] == "done" else None
    return {**kept, "files": " → ".join(one["files"].values()) or "–", "kind": KINDS[one["kind"]], "report": report}


def _called(view: View, one: Mapping[str, Any]) -> str:
    """An upload by its files, and when it began: the same may be uploaded twice."""
    files = " → ".join(one["files"].values())
    return f"{files[:60] or 'what was not sent'}, {view.time(one['created_ns'])[-8:]}"


class _Removal:
    """A way to remove an upload before its time; a part."""

    def __init__(self, uploads: tuple[tuple[str, str], ...], path: str) -> None:
        self._uploads, self._path = uploads, path

    @property
    def shape(self) -> object:
        """The same uploads."""
        return "removal", self._uploads

    def draw(self, *, dark: bool) -> _Removal:  # noqa: ARG002
        """A button for each of the latest."""
        with tag("div", "", "actions"):
            for upload_id, called in self._uploads[:5]:
                tag(
                    "button", f"Remove {called}", "quiet", type="button", data_remove=f"/uploads/{upload_id}",
                    data_sure=f"Remove {called} and its report?", data_then=self._path,
                )  # fmt: skip
        return self

    def renew(self, part: object) -> None:
        """Nothing changes."""
