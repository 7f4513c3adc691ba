"""`sojourn sink`: packets of a collection network to the query unit as they come, and where they waited."""

from __future__ import annotations

import re
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn.cli.options import FormatOption, UnitAccess, WriteOption, command_group, grouped
from sojourn.cli.output import Block, Format, TableColumn, choose_format, print_json, say, write_rows
from sojourn.cli.tomography import NODE_TABLE, PACKET_TABLE
from sojourn.core.errors import UsageError
from sojourn.core.executors.interrupts import stopping_on_interrupt
from sojourn.core.units import parse_duration, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sojourn.client.collections import PacketSender
    from sojourn.tomography.trace import PacketRow

app = command_group(
    "Send a sink's packets to a query unit as they come, and ask where they waited.",
    "sojourn sink send trace.csv gateway/field --follow",
)
CollectionArgument = Annotated[
    str, typer.Argument(metavar="COLLECTION", help="NODE/NAME: the node that the sink is, and what it calls this.")
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Generated since: -10m, 10:05, ISO 8601, or the sink's seconds."),
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Generated until then; as --from.")]
_HOP_FIELDS = (
    "origin", "seq", "hop", "node", "t0_ns", "delay_ns", "low_ns", "high_ns", "likely_low_ns", "likely_high_ns",
)  # fmt: skip


@app.command(epilog="Example:  tail -n +1 -f trace.jsonl | sojourn sink send - gateway/field --server http://unit:8080")
@grouped
def send(
    *,
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace (CSV, JSON lines, Parquet), or - for stdin.")],
    collection: CollectionArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added to the file.")] = False,
    close: Annotated[bool, typer.Option("--close", help="At the end, have everything solved and wait for it.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Packets sent at once.")] = 1000,
    every: Annotated[str, typer.Option(metavar="TIME", help="Longest time that a packet is held back.")] = "1s",
    give_up_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop when the query unit is away for so long; by default never.")
    ] = None,
    unit: UnitAccess,
    output_format: FormatOption = None,
) -> None:
    """Send a trace, growing or not, to a node's collection; nothing is counted twice if it is sent again."""
    from sojourn.client.collections import PacketSender

    every_seconds = parse_duration(every) / 1e9
    patience = None if give_up_after is None else parse_duration(give_up_after) / 1e9
    faults: Counter[str] = Counter()
    with unit.sink_client() as client:
        sender = PacketSender(client, collection, lambda text: say(f"warning: {text}"), batch, every_seconds, patience)
        packets = _packets(trace, faults, follow=follow, is_over=sender.stopping.is_set)
        with stopping_on_interrupt(sender.stopping.set) if follow else nullcontext():
            sender.run(packets)
        _tell_sent(sender, faults, output_format or Format.TABLE)
        if close and sender.counts["stored"] + sender.counts["duplicates"]:
            _print_states([client.close_windows(collection)], Format.TABLE, to_stderr=True)


def _packets(trace: str, faults: Counter[str], *, follow: bool, is_over: Callable[[], bool]) -> Iterator[PacketRow]:
    """The packets of a file or of stdin, which may not have ended."""
    from sojourn.tomography.reading import LONGEST_LINE, growing_lines, packets_of_lines, read_packets

    if trace == "-":
        return packets_of_lines(iter(lambda: sys.stdin.buffer.readline(LONGEST_LINE), b""), faults, where="stdin")
    if not follow:
        return read_packets(Path(trace), faults)
    if trace.endswith((".gz", ".parquet", ".pq")):
        raise UsageError("only text can be followed", where=trace, action="give CSV or JSON lines")
    return packets_of_lines(growing_lines(open(trace, "rb"), is_over), faults, where=trace)


def _tell_sent(sender: PacketSender, faults: Counter[str], how: Format) -> None:
    """What became of the packets; those not accepted by reason, on stderr too."""
    refused = dict(faults + sender.refused)
    counts = {name: sender.counts[name] for name in ("stored", "duplicates", "conflicts", "late")}
    if how is Format.JSON:
        print_json({**counts, "refused": refused})
    else:
        columns: dict[str, list[int]] = {name: [count] for name, count in counts.items()}
        columns["refused"] = [sum(refused.values())]
        write_rows([columns], how, table=[TableColumn(name, name, "{:,}".format) for name in columns])
    for reason, count in refused.items():
        say(f"warning: {count:,} not accepted: {reason}")
    if counts["conflicts"]:
        say(f"warning: {counts['conflicts']:,} not accepted: another packet of that origin, number and time is there")
    if counts["late"]:
        answered = "answered behind the next, or by sojourn sink close"
        say(f"warning: {counts['late']:,} came after their window was solved: {answered}")


@app.command(name="list", epilog="Example:  sojourn sink list --format json")
@grouped
def list_collections(unit: UnitAccess, output_format: FormatOption = None) -> None:
    """List collections: packets, windows solved, and what came late or could not be used."""
    with unit.sink_client() as client:
        _print_states(client.collections(), output_format or Format.TABLE)


@app.command(epilog="Example:  sojourn sink close gateway/field")
@grouped
def close(collection: CollectionArgument, unit: UnitAccess, output_format: FormatOption = None) -> None:
    """Have everything that has come solved now, late packets too, without waiting for packets from after it."""
    with unit.sink_client() as client:
        _print_states([client.close_windows(collection)], output_format or Format.TABLE)


@app.command(epilog="Example:  sojourn sink nodes gateway/field --from -10m")
@grouped
def nodes(
    *,
    collection: CollectionArgument,
    start: FromOption = None,
    end: ToOption = None,
    unit: UnitAccess,
    output_format: FormatOption = None,
    output: WriteOption = None,
) -> None:
    """Tell how long packets stayed at each node, slowest first."""
    with unit.sink_client() as client:
        table = client.node_table(collection, **_range(start, end))
    names = [column.name for column in NODE_TABLE]
    block = {name: [node[name] for node in table["nodes"]] for name in names}
    how = choose_format(output_format, output)
    fields = {"packets": table["packets"]}
    write_rows([block], how, path=output, name="nodes", fields=fields, table=NODE_TABLE)
    if how is Format.TABLE:
        print(f"{plural(table['packets'], 'packet')}", file=sys.stderr)


@app.command(epilog="Example:  sojourn sink hops gateway/field --packet 17:3")
@grouped
def hops(
    *,
    collection: CollectionArgument,
    packet: Annotated[str | None, typer.Option(metavar="ORIGIN:SEQ", help="Only this packet.")] = None,
    start: FromOption = None,
    end: ToOption = None,
    unit: UnitAccess,
    output_format: FormatOption = None,
    output: WriteOption = None,
) -> None:
    """Tell where packets waited, hop by hop: estimates within guaranteed bounds, and intervals."""
    how = choose_format(output_format, output)
    with unit.sink_client() as client:
        if packet is None:
            blocks = _hop_pages(client.hops(collection, **_range(start, end)))
        else:
            blocks = iter([_packet_block(client.packet(collection, *_packet_name(packet)), packet)])
        write_rows(blocks, how, path=output, name="hops", table=PACKET_TABLE)


def _hop_pages(pages: Iterator[dict[str, Any]]) -> Iterator[Block]:
    """A block for each page; what has no answer is told at the end."""
    unsolved = 0
    for page in pages:
        unsolved += page["unsolved"]
        yield {name: [hop.get(name) for hop in page["hops"]] for name in _HOP_FIELDS}
    if unsolved:
        why = "their window is open, or they are late, left out or set aside"
        say(f"warning: {plural(unsolved, 'packet has', 'packets have')} no answer: {why}")


def _packet_block(packets: list[dict[str, Any]], asked: str) -> Block:
    if not packets:
        raise UsageError(f"the collection has no packet {asked}", action="name one that reached the sink")
    for packet in packets:
        if packet["status"] != "solved":
            why = f" (its window {packet['reason']})" if packet["reason"] else ""
            name = f"the packet of t0 = {packet['t0_ns'] / 1e9:.6f} s"
            say(f"warning: {name} has no answer: it is {packet['status']}{why}")
    return {key: [hop.get(key) for packet in packets for hop in packet["hops"]] for key in _HOP_FIELDS}


def _packet_name(text: str) -> tuple[int, int]:
    if not re.fullmatch(r"[0-9]{1,16}:[0-9]{1,16}", text):
        raise UsageError(f"{text[:60]!r} is no packet", action="write ORIGIN:SEQ, such as 17:3")
    origin, sequence = text.split(":")
    return int(origin), int(sequence)


def _range(start: str | None, end: str | None) -> dict[str, int]:
    given = {"from_ns": start, "to_ns": end}
    return {name: _when(text) for name, text in given.items() if text is not None}


def _when(text: str) -> int:
    """A point in time; a short number is seconds of a sink's own clock.

    >>> _when("12.5")
    12500000000
    """
    from sojourn.core.units import parse_time

    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return round(float(text) * 1e9)
    return max(parse_time(text), 0)


def _print_states(states: list[dict[str, Any]], how: Format, *, to_stderr: bool = False) -> None:
    if to_stderr:
        for state in states:
            print(
                f"{state['node']}/{state['name']}: {plural(state['solved'], 'packet')} solved in "
                f"{plural(state['windows'], 'window')}, {state['late']:,} late, {state['left_out']:,} left out, "
                f"{state['set_aside']:,} set aside",
                file=sys.stderr,
            )
    else:
        names = list(states[0]) if states else [column.name for column in _state_columns()]
        block = {name: [state[name] for state in states] for name in names}
        if how is not Format.JSON and "set_aside_reasons" in block:
            block["set_aside_reasons"] = ["; ".join(reasons) for reasons in block["set_aside_reasons"]]
        write_rows([block], how, name="collections", table=_state_columns())
    for state in states:
        for reason, count in state["set_aside_reasons"].items():
            say(f"warning: {state['node']}/{state['name']}: {plural(count, 'packet')} set aside: their window {reason}")
        if state["trouble"]:
            say(f"warning: {state['node']}/{state['name']}: {state['trouble']}")


def _state_columns() -> list[TableColumn]:
    counts = ("packets", "open", "solved", "late", "set_aside", "duplicates", "conflicts", "refused", "windows")
    return [
        TableColumn("node", "node", justify="left"),
        TableColumn("name", "collection", justify="left"),
        *(TableColumn(name, name.replace("_", " "), "{:,}".format) for name in counts),
        TableColumn("sums", "sums as", justify="left"),
    ]
