"""`sojourn flows`: the flow table of a capture."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.capture.packet_source import (
    BufferOption,
    CountOption,
    ForOption,
    InterfaceOption,
    LiveLimits,
    PromiscuousOption,
    WordsArgument,
    open_packets,
)
from sojourn.cli.options import FormatOption, InnerOption, StrictOption, VerboseOption, WriteOption
from sojourn.cli.output import Block, Format, TableColumn, choose_format, progress, write_rows
from sojourn.core.errors import harmless

if TYPE_CHECKING:
    from sojourn.capture.files.reader import CaptureReader
    from sojourn.capture.flows.table import FlowTable
    from sojourn.capture.live.reader import LiveReader
    from sojourn.core.arrays import Int64Array

__all__ = ["flows"]

_TABLE_LIMIT = 20
_BLOCK_ROWS = 1 << 14
_BATCHES_PER_STEP = 8

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn flows ingress.pcap.gz --limit 2
  source      port  destination  port  protocol  packets     bytes  …
  10.81.0.2  53422  10.82.0.2    5201  tcp         2,117  3.02 MiB  …
  10.81.0.2  53442  10.82.0.2    5201  tcp         1,898  2.71 MiB  …

  $ sojourn flows trunk.pcapng --key vlan+five-tuple -w flows.csv
  $ tcpdump -i eth0 -w - | sojourn flows - --format json
  $ sojourn flows -i eth0 --for 10s udp
"""


def flows(
    words: WordsArgument = None,
    interface: InterfaceOption = "",
    duration: ForOption = None,
    count: CountOption = None,
    promiscuous: PromiscuousOption = False,
    buffer: BufferOption = None,
    key: Annotated[
        str,
        typer.Option(
            help="What makes a flow: five-tuple, host-pair, dest, prefix/LEN (of the destination; "
            "prefix/LEN,LEN6 for IPv6 apart) or vlan+five-tuple."
        ),
    ] = "five-tuple",
    inner: InnerOption = False,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Only the flows with most bytes; 0 is all. Default: 20 in a table, else all."),
    ] = None,
    max_flows: Annotated[int, typer.Option(min=1, help="How many flows to keep at most.")] = 1 << 20,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    output_format: FormatOption = None,
    output: WriteOption = None,
) -> None:
    """Show the flows of a capture or an interface: packets, bytes, first and last time."""
    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.capture.decode.keying import FlowKeying

    how = choose_format(output_format, output)
    options = DecodeOptions(keying=FlowKeying.parse(key), inner=inner, max_flows=max_flows)
    live = LiveLimits(duration, count, promiscuous, buffer)
    with open_packets(words, interface, live, command="flows", options=options, strict=strict) as reader:
        _read_all(reader)
        table = reader.flows
        order = table.by_bytes(_TABLE_LIMIT if limit is None and how is Format.TABLE else limit)
        write_rows(
            _blocks(table, order),
            how,
            path=output,
            fields={
                "packets": reader.packets,
                "ip_packets": reader.ip_packets,
                "ignored": reader.ignored,
            },
            table=_table_columns(has_vlans=key.startswith("vlan")),
        )
        _report(reader, shown=len(order), is_table=how is Format.TABLE, verbose=verbose)


def _read_all(reader: CaptureReader | LiveReader) -> None:
    with progress(reader.name) as advance:
        for number, _batch in enumerate(reader):
            if number % _BATCHES_PER_STEP == 0:
                advance(f"{reader.packets:,} packets", reader.share_read)


def _blocks(table: FlowTable, order: Int64Array) -> Iterator[Block]:
    """The chosen flows as columns, a block at a time; one empty block where there are none."""
    from sojourn.core.keys import flow_fields

    for start in range(0, max(len(order), 1), _BLOCK_ROWS):
        rows = order[start : start + _BLOCK_ROWS]
        named = [flow_fields(table.key(row)) for row in rows.tolist()]
        names = named[0] if named else dict.fromkeys(("src_ip", "src_port", "dest_ip", "dest_port", "protocol"))
        yield {name: [fields[name] for fields in named] for name in names} | {
            "packets": table.packets[rows],
            "bytes": table.bytes[rows],
            "first_ns": table.first_ns[rows],
            "last_ns": table.last_ns[rows],
        }


def _table_columns(*, has_vlans: bool) -> list[TableColumn]:
    from sojourn.core.units import format_bytes

    columns = [
        TableColumn("src_ip", "source", justify="left"),
        TableColumn("src_port", "port", _show_port),
        TableColumn("dest_ip", "destination", justify="left"),
        TableColumn("dest_port", "port", _show_port),
        TableColumn("protocol", "protocol", justify="left"),
        TableColumn("packets", "packets", "{:,}".format),
        TableColumn("bytes", "bytes", format_bytes),
        TableColumn("first_ns", "first (UTC)", _show_time),
        TableColumn("last_ns", "last (UTC)", _show_time),
    ]
    return [TableColumn("vlan", "vlan", justify="left"), *columns] if has_vlans else columns


def _show_port(port: int) -> str:
    return str(port) if port else ""


def _show_time(time_ns: int) -> str:
    """A time in UTC, to the microsecond."""
    from datetime import UTC, datetime, timedelta

    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def _report(reader: CaptureReader | LiveReader, *, shown: int, is_table: bool, verbose: bool) -> None:
    """What stands beside the answer, on stderr: a total, what was ignored, and warnings."""
    if is_table:
        hidden = len(reader.flows) - shown
        more = f", {hidden:,} flows not shown" if hidden else ""
        print(f"{reader.packets:,} packets, {reader.ip_packets:,} of IP{more}", file=sys.stderr)
    if verbose:
        for text, count in reader.ignored.items():
            print(f"ignored: {count:,} × {text}", file=sys.stderr)
        for text, count in reader.notes.items():
            print(f"note: {count:,} {text}", file=sys.stderr)
    for warning in reader.warnings:
        print(harmless(f"sojourn: warning: {warning}"), file=sys.stderr)


flows.__doc__ = f"{flows.__doc__}\n\n\b\n{_EXAMPLE}"
