"""`sojourn flows`: the flow table of a capture."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import typer

from sojourn.cli.options import (
    InnerOption,
    KeyOption,
    Live,
    Output,
    StrictOption,
    VerboseOption,
    WordsArgument,
    grouped,
)
from sojourn.cli.output import Format, TableColumn, columns, progress, warn
from sojourn.core.units import format_bytes, plural

HELP = "Show the flows of a capture or an interface: packets, bytes, first and last time."
EXAMPLE = """\
[bold]Examples[/bold]

\b
  $ sojourn flows ingress.pcap.gz --limit 2
  source      port  destination  port  protocol  packets     bytes  …
  10.81.0.2  53422  10.82.0.2    5201  tcp         2,117  3.02 MiB  …
  10.81.0.2  53442  10.82.0.2    5201  tcp         1,898  2.71 MiB  …

\b
  $ sojourn flows trunk.pcapng --key vlan+five-tuple -w flows.csv
  $ tcpdump -i eth0 -w - | sojourn flows - --format json
  $ sojourn flows -i eth0 --for 10s udp
"""


@grouped
def flows(
    words: WordsArgument = None,
    *,
    live: Live,
    key: KeyOption = "five-tuple",
    inner: InnerOption = False,
    max_flows: Annotated[int, typer.Option(min=1, help="How many flows to keep at most.")] = 1 << 20,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    output: Output,
) -> None:
    from sojourn.capture.flows.result import flows as count_flows

    how = output.how
    source, where = live.source(words, "flows")
    with progress("flows") as advance:
        result = count_flows(
            source, where=where, key=key, inner=inner, max_flows=max_flows, strict=strict, advance=advance
        )
    hidden = output.write(result, _table(has_vlans=key.startswith("vlan")))
    if how is Format.TABLE:
        more = f", {plural(hidden, 'flow')} not shown" if hidden else ""
        print(f"{plural(result.packets, 'packet')}, {result.ip_packets:,} of IP{more}", file=sys.stderr)
    if verbose:
        for text, count in result.ignored.items():
            print(f"ignored: {count:,} × {text}", file=sys.stderr)
        for text, count in result.notes.items():
            print(f"note: {count:,} {text}", file=sys.stderr)
    warn(result.warnings)


def _table(*, has_vlans: bool) -> list[TableColumn]:
    return [
        *(columns("vlan", left=True) if has_vlans else []),
        *flow_columns("source", "destination"),
        TableColumn("packets", "packets", "{:,}".format),
        TableColumn("bytes", "bytes", format_bytes),
        TableColumn("first_ns", "first (UTC)", _show_time, rank=1),
        TableColumn("last_ns", "last (UTC)", _show_time, rank=2),
    ]


def flow_columns(source: str, destination: str, protocol: str = "protocol", *, rank: int = 0) -> list[TableColumn]:
    """What names a flow in a table; `rank` is the protocol's."""
    return [
        TableColumn("src_ip", source, justify="left"),
        TableColumn("src_port", "port", show_port),
        TableColumn("dest_ip", destination, justify="left"),
        TableColumn("dest_port", "port", show_port),
        TableColumn("protocol", protocol, justify="left", rank=rank),
    ]


def show_port(port: int) -> str:
    return str(port) if port else ""


def flow_end(row: Mapping[str, Any], which: Literal["src", "dest"]) -> str:
    """Host and port of a flow's source or destination.

    >>> flow_end({"src_ip": "2001:db8::1", "src_port": 443}, "src")
    '[2001:db8::1]:443'
    """
    ip, port = row[f"{which}_ip"], row[f"{which}_port"]
    host = f"[{ip}]" if ip and ":" in ip and port else ip or "?"
    return f"{host}:{port}" if port else str(host)


def _show_time(time_ns: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
