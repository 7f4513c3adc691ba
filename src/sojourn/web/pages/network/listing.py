"""All topologies that are stored, and a form for another one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sojourn.web.pages.parts import Column, Note, Part, Table, tag
from sojourn.web.pages.shell import LIVE_SECONDS, Panel, heading, options, page, panels, section, text_field
from sojourn.web.pages.view import View

ENDINGS = ".intra,.graphml,.gml,.csv"
_DIRECTIONS = {"": "as is usual for the format", "false": "lead both ways", "true": "lead one way, as listed"}


@page("/networks", "Networks")
def networks(view: View) -> None:
    """A table and a form."""
    heading("Networks", "Topologies: which routers to upgrade, and which segment of a path is slow now.")
    with panels():
        Panel(view, "Topologies", partial(table, view), every=4 * LIVE_SECONDS, wide=True)
        if view.is_admin:
            _form()


async def table(view: View) -> Sequence[Part]:
    """Every topology."""
    found = await view.unit.get("/api/v1/topologies")
    if not found:
        if view.is_admin:
            return [Note("No topology is stored yet: give the file of one below.")]
        return [Note("No topology is stored yet. An admin stores one here, or with:", command=_command(view))]
    columns = [
        Column("name", "Topology", link=("/network", {"name": "name"})),
        Column("routers", "Routers", kind="count", width=110),
        Column("links", "Links", kind="count", width=110, hint="one way each"),
        Column("file_name", "File"),
        Column("stored_ns", "Stored", kind="ago", width=125),
        Column("stored_by", "By"),
    ]
    return [Table("topologies", columns, found, key=("name",))]


def _command(view: View) -> str:
    address = f"{view.address}/api/v1/topologies/backbone?file_name=backbone.graphml"
    return f"curl -T backbone.graphml '{address}' -H \"Authorization: Bearer $SOJOURN_TOKEN\""


def _form() -> None:
    formats = "Rocketfuel *.weights.intra, GraphML, GML, or CSV of source,target,weight"
    with section("Store a topology", formats), tag("form", "", "fields", data_upload="topology"):
        text_field("topology-file", "File", "file", type="file", accept=ENDINGS, required=True, classes="field file")
        text_field("topology-name", "Name", "name", placeholder="as the file", maxlength="200")
        with tag("div", "", "field"):
            tag("label", "Its links", for_="topology-directed")
            options("topology-directed", "directed", _DIRECTIONS, "")
        tag("button", "Store", type="submit")
        sending()


def sending() -> None:
    """What a form shows while it sends files, and why it could not."""
    tag("p", "", "notice bad", role="alert", hidden=True)
    with tag("div", "", "progress", hidden=True):
        tag("span", "", role="status")
        tag("progress", "", max="1", value="0", aria_label="Sent")
