"""`sojourn rtt`: passive round-trip times of one capture, per flow or sample by sample."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TextIO

import typer

from sojourn.cli.output import Advance, progress
from sojourn.core.errors import UsageError
from sojourn.core.units import format_bytes, parse_duration

if TYPE_CHECKING:
    from sojourn.capture.flow_table import FlowTable
    from sojourn.capture.rtt import RttMeter, RttSamples
    from sojourn.capture.rtt_summary import RttSummaries
    from sojourn.capture.transport import TransportBatch
    from sojourn.cli.rtt_rows import FlowNames
    from sojourn.core.batches import PacketBatch

__all__ = ["EXAMPLE", "HELP", "PacketSource", "measure_source", "rtt"]

HELP = (
    "Passive round-trip times from one capture: TCP (handshake, time stamps, SEQ/ACK), ICMP echo, MQTT. "
    "A line is named by the host that answered and the one it answered to; the time is the way from the "
    "capture point to the former and back."
)
EXAMPLE = (
    "Examples:  sojourn rtt trace.pcapng   |   "
    "sojourn rtt trace.pcap.gz --samples --kind timestamps --format csv -w rtt.csv   |   "
    "sojourn rtt trace.pcap --format json | jq '.flows[] | select(.p95_rtt > 100e6)'"
)


class RttFormat(StrEnum):
    """How the answer is written."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class KindName(StrEnum):
    """What samples are read from."""

    TIMESTAMPS = "timestamps"
    SEQ = "seq"
    HANDSHAKE = "handshake"
    ICMP = "icmp"
    MQTT = "mqtt"


class PacketSource(Protocol):
    """Where the packets come from: a capture file, or an interface."""

    @property
    def packets(self) -> int: ...
    @property
    def ip_packets(self) -> int: ...
    @property
    def ignored(self) -> dict[str, int]: ...
    @property
    def flows(self) -> FlowTable: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def share_read(self) -> float: ...
    def with_transport(self) -> Iterator[tuple[PacketBatch, TransportBatch]]: ...


def rtt(
    capture: Annotated[str, typer.Argument(help="pcap or pcapng, plain, gzip or zstd; - is stdin.")] = "",
    samples: Annotated[
        bool, typer.Option("--samples", help="Write every sample as it is completed, not a summary per flow.")
    ] = False,
    kind: Annotated[
        list[KindName] | None,
        typer.Option(
            help="Only this kind (may be repeated). By default all, with seq only where segments have no "
            "time stamps; a named seq is read from every segment."
        ),
    ] = None,
    output: Annotated[
        RttFormat | None, typer.Option("--format", help="table, or as the name of the file to write ends.")
    ] = None,
    write: Annotated[Path | None, typer.Option("-w", "--write", help="Write there, not to stdout.")] = None,
    interface: Annotated[str, typer.Option("-i", "--interface", help="Capture live on this interface.")] = "",
    inner: Annotated[bool, typer.Option("--inner", help="Look into tunnels.")] = False,
    max_rtt: Annotated[str, typer.Option(help="What takes longer is no round trip.")] = "60s",
    connections: Annotated[int, typer.Option(help="Connections remembered at a time (power of two).")] = 1
    << 16,
    pending: Annotated[int, typer.Option(help="Unanswered packets remembered (power of two).")] = 1 << 18,
    flows: Annotated[int, typer.Option(help="Flow directions summarised at most.")] = 1 << 16,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on a damaged capture.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Tell what was left out.")] = False,
) -> None:
    """Read, time, print."""
    chosen = _format_of(output, write)
    with progress("rtt") as advance:
        from sojourn.capture.rtt import RttLimits, RttMeter, RttOptions
        from sojourn.capture.rtt_state import Kind
        from sojourn.capture.rtt_summary import RttSummaries

        limits = RttLimits(connections=connections, pending=pending, max_rtt_ns=parse_duration(max_rtt))
        options = RttOptions(kinds=frozenset(Kind[k.name] for k in kind or ()), limits=limits)
        meter, summaries = RttMeter(options), RttSummaries(flows)
        with _open_source(capture, interface, inner=inner, strict=strict) as source:
            if samples:
                _write_samples(source, meter, summaries, chosen, write, advance)
            else:
                for _ in measure_source(source, meter, summaries, advance):
                    pass
                _write_flows(source, meter, summaries, chosen, write)
            _report(source, meter, summaries, verbose=verbose)


@contextmanager
def _open_source(capture: str, interface: str, *, inner: bool, strict: bool) -> Iterator[PacketSource]:
    """The packets asked for; live capture joins here."""
    if bool(capture) == bool(interface):
        raise UsageError("one source is needed", where="rtt", action="give a CAPTURE, or -i INTERFACE")
    if interface:
        raise UsageError(
            f"cannot capture on {interface}", where="rtt", action="record with -w, read the file"
        )
    from sojourn.capture.decoder import DecodeOptions
    from sojourn.capture.reader import open_capture

    with open_capture(capture, DecodeOptions(inner=inner), strict=strict) as reader:
        yield reader


def measure_source(
    source: PacketSource, meter: RttMeter, summaries: RttSummaries, advance: Advance
) -> Iterator[RttSamples]:
    """Feed a source to a meter; every sample is in the summaries before it is given."""
    for _, batch in source.with_transport():
        for found in meter.feed(batch):
            summaries.add(found)
            yield found
        advance(f"{meter.packets:,} packets, {len(summaries):,} flows", source.share_read)


def _format_of(output: RttFormat | None, write: Path | None) -> RttFormat:
    """The format asked for, or the one that the file's name tells."""
    if output is None:
        endings = {f".{known.value}": known for known in RttFormat}
        output = endings.get(write.suffix, RttFormat.TABLE) if write else RttFormat.TABLE
    if output is RttFormat.PARQUET and write is None:
        raise UsageError("Parquet does not go to stdout", where="rtt", action="name a file with -w")
    return output


@contextmanager
def _opened(write: Path | None) -> Iterator[TextIO]:
    if write is None:
        yield sys.stdout
        sys.stdout.flush()
    else:
        with write.open("w", encoding="utf-8", newline="") as file:
            yield file


def _write_samples(
    source: PacketSource,
    meter: RttMeter,
    summaries: RttSummaries,
    chosen: RttFormat,
    write: Path | None,
    advance: Advance,
) -> None:
    """Samples as they are completed; nothing is kept."""
    from sojourn.cli.rtt_rows import SAMPLE_NAMES, FlowNames, sample_columns, sample_lines, write_parquet

    names = FlowNames(source.flows)
    batches = measure_source(source, meter, summaries, advance)
    if chosen is RttFormat.PARQUET:
        write_parquet(str(write), (sample_columns(found, names) for found in batches), SAMPLE_NAMES)
        return
    with _opened(write) as file:
        if chosen is RttFormat.JSON:
            _write_samples_object(batches, names, source, meter, summaries, file)
            return
        if chosen is RttFormat.CSV:
            file.write(",".join(SAMPLE_NAMES) + "\n")
        for found in batches:
            file.writelines(f"{line}\n" for line in sample_lines(found, names, chosen.value))
            file.flush()


def _write_samples_object(
    batches: Iterator[RttSamples],
    names: FlowNames,
    source: PacketSource,
    meter: RttMeter,
    summaries: RttSummaries,
    file: TextIO,
) -> None:
    """One JSON object whose samples are written as they come."""
    from sojourn.cli.rtt_rows import sample_lines

    file.write('{"samples": [')
    separator = ""
    for found in batches:
        for line in sample_lines(found, names, "jsonl"):
            file.write(separator + line)
            separator = ", "
    rest = {"summary": _summary(source, meter, summaries), "ignored": _ignored(source, meter, summaries)}
    file.write("], " + json.dumps(rest)[1:] + "\n")


def _write_flows(
    source: PacketSource, meter: RttMeter, summaries: RttSummaries, chosen: RttFormat, write: Path | None
) -> None:
    from sojourn.cli.rtt_rows import FLOW_NAMES, FlowNames, flow_rows, print_flows, write_parquet

    rows = flow_rows(summaries.flows(), FlowNames(source.flows))
    if chosen is RttFormat.PARQUET:
        write_parquet(str(write), [{name: [row[name] for row in rows] for name in FLOW_NAMES}], FLOW_NAMES)
        return
    with _opened(write) as file:
        if chosen is RttFormat.JSON:
            answer = {"summary": _summary(source, meter, summaries), "flows": rows}
            file.write(json.dumps(answer | {"ignored": _ignored(source, meter, summaries)}) + "\n")
        elif chosen is RttFormat.JSONL:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        elif chosen is RttFormat.CSV:
            file.write(",".join(FLOW_NAMES) + "\n")
            file.writelines(
                ",".join("" if v is None else str(v) for v in row.values()) + "\n" for row in rows
            )
        else:
            title = f"{summaries.samples:,} samples of {len(rows):,} flows, {source.packets:,} packets"
            print_flows(rows, title, file)


def _summary(source: PacketSource, meter: RttMeter, summaries: RttSummaries) -> dict[str, Any]:
    return {
        "samples": summaries.samples,
        "flows": len(summaries),
        "packets": source.packets,
        "ip_packets": source.ip_packets,
        "memory_bytes": meter.memory_bytes,
    }


def _ignored(source: PacketSource, meter: RttMeter, summaries: RttSummaries) -> dict[str, int]:
    """What was left out on the way: while decoding, while timing, while summarising."""
    return source.ignored | meter.ignored | summaries.dropped


def _report(source: PacketSource, meter: RttMeter, summaries: RttSummaries, *, verbose: bool) -> None:
    for warning in source.warnings:
        print(f"sojourn: warning: {warning}", file=sys.stderr)
    if not verbose:
        return
    print(f"packets: {source.packets}, of IP: {source.ip_packets}", file=sys.stderr)
    print(f"memory for round-trip times: {format_bytes(meter.memory_bytes)}", file=sys.stderr)
    for reason, count in sorted(_ignored(source, meter, summaries).items(), key=lambda item: -item[1]):
        print(f"left out: {reason}: {count}", file=sys.stderr)
