"""`sojourn rtt`: passive round-trip times of one capture, per flow or sample by sample."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.capture.flows import flow_columns, flow_end
from sojourn.cli.options import InnerOption, Live, Output, StrictOption, VerboseOption, WordsArgument, grouped
from sojourn.cli.output import Format, TableColumn, opened, progress, warn
from sojourn.cli.reports import ReportOption, check_report, write_report
from sojourn.core.results import rows
from sojourn.core.units import format_bytes, format_duration, parse_duration

if TYPE_CHECKING:
    from sojourn.core.results import Columns
    from sojourn.rtt.result import RttResult, RttRun

HELP = "Measure round-trip times passively: TCP, ICMP echo, MQTT, QUIC and DNS, named by the host that answered."
EXAMPLE = """\
[bold]Examples[/bold]

\b
  $ sojourn rtt office.pcapng --limit 2
  answered by      port  to               port  protocol  kind        samples      min     mean  …
  10.0.0.8        40800  212.199.202.69     80  tcp       timestamps      108  40.0 µs  1.12 ms  …
  212.199.202.69     80  10.0.0.8        40800  tcp       timestamps        1  14.6 ms  14.6 ms  …

\b
  $ sojourn rtt office.pcapng --sort p99 --columns src_ip,dest_ip,samples,p99_ns
  $ sojourn rtt office.pcapng --samples --kind timestamps -w rtt.csv
  $ sojourn rtt office.pcapng --format json | jq '.flows[] | select(.p95_ns > 100e6)'
  $ sojourn rtt -i eth0 --for 1min tcp port 1883
  $ sojourn rtt office.pcapng --report rtt.html
"""


class KindName(StrEnum):
    """What samples are read from."""

    TIMESTAMPS = "timestamps"
    SEQ = "seq"
    HANDSHAKE = "handshake"
    ICMP = "icmp"
    MQTT = "mqtt"
    QUIC = "quic"
    QUIC_WHOLE = "quic-whole"
    DNS = "dns"


@grouped
def rtt(
    words: WordsArgument = None,
    *,
    live: Live,
    samples: Annotated[
        bool, typer.Option("--samples", help="Write every sample as it is completed, not a summary per flow.")
    ] = False,
    kind: Annotated[
        list[KindName] | None,
        typer.Option(
            help="Only this kind (may be repeated). By default all, with seq only where segments have no time stamps "
            "and quic-whole only where one direction passes; when named, they are measured everywhere."
        ),
    ] = None,
    inner: InnerOption = False,
    quic_port: Annotated[
        list[int] | None,
        typer.Option(metavar="PORT", help="UDP port of QUIC (may be repeated). \\[default: 443]"),
    ] = None,
    dns_port: Annotated[
        list[int] | None,
        typer.Option(metavar="PORT", help="UDP port of DNS (may be repeated). \\[default: 53]"),
    ] = None,
    max_rtt: Annotated[
        str, typer.Option(metavar="TIME", help="An answer that takes longer does not count as a round trip.")
    ] = "60s",
    connections: Annotated[int, typer.Option(help="Connections remembered (power of two).")] = 1 << 16,
    pending: Annotated[int, typer.Option(help="Unanswered packets remembered (power of two).")] = 1 << 18,
    max_flows: Annotated[int, typer.Option(help="Flow directions summarised at most.")] = 1 << 16,
    strict: StrictOption = False,
    report: ReportOption = None,
    verbose: VerboseOption = False,
    output: Output,
) -> None:
    from sojourn.rtt.result import open_rtt
    from sojourn.rtt.round_trips import DNS_PORT, QUIC_PORT
    from sojourn.rtt.state import RttLimits, RttSamples

    how = output.how
    limits = RttLimits(connections=connections, pending=pending, max_rtt_ns=parse_duration(max_rtt, where="--max-rtt"))
    source, where = live.source(words, "rtt")
    check_report(report, [] if live.interface else [str(source)])
    with open_rtt(
        source, where=where, kinds=kind or (), inner=inner, limits=limits, quic_ports=quic_port or (QUIC_PORT,),
        dns_ports=dns_port or (DNS_PORT,), max_flows=max_flows, strict=strict,
    ) as run:  # fmt: skip
        # Where samples run over the screen, a bar would be in their way.
        with progress("rtt", shown=not (samples and sys.stdout.isatty())) as advance:
            if not samples:
                deque(run.samples(advance), maxlen=0)
            elif how is Format.TABLE:
                _write_lines(run, output)
            else:
                # An empty block first: a header even where there are no samples.
                found = chain([RttSamples.none()], run.samples(advance))
                output.stream((run.columns(some) for some in found), "samples")
        result = run.result()
    if not samples:
        output.write(result, _table())
    if (samples and live.interface) or (not samples and output.how is Format.TABLE and not len(result)):
        print(result.summary, file=sys.stderr)
    _tell(result, verbose=verbose)
    write_report(result, report)


def _tell(result: RttResult, *, verbose: bool) -> None:
    warn(result.warnings)
    if not verbose:
        return
    print(f"packets: {result.packets}, of IP: {result.ip_packets}", file=sys.stderr)
    print(f"memory for round-trip times: {format_bytes(result.memory_bytes)}", file=sys.stderr)
    for reason, count in sorted(result.ignored.items(), key=lambda item: -item[1]):
        print(f"left out: {reason}: {count}", file=sys.stderr)


def _write_lines(run: RttRun, output: Output) -> None:
    lines = (line for found in run.samples() for line in _lines(run.columns(found)))
    with opened(output.output) as file:
        for line in islice(lines, output.limit or None):
            print(line, file=file, flush=True)


def _lines(samples: Columns) -> Iterator[str]:
    """Samples as pping writes them: time, RTT, least RTT, flow of the answer; then kind and note."""
    for row in rows(samples):
        second, fraction = divmod(row["timestamp"], 1_000_000_000)
        clock = datetime.fromtimestamp(second, UTC).strftime("%H:%M:%S")
        flow = f"{row['protocol']} {flow_end(row, 'src')}+{flow_end(row, 'dest')}"
        times = f"{format_duration(row['rtt'])} {format_duration(row['min_rtt'])}"
        yield f"{clock}.{fraction:09d} {times} {flow} {row['kind']} {row['note']}".rstrip()


def _table() -> list[TableColumn]:
    return [
        *flow_columns("answered by", "to", rank=4),
        TableColumn("kind", "kind", justify="left"),
        TableColumn("samples", "samples", "{:,}".format),
        TableColumn("min_rtt", "min", format_duration, rank=2),
        TableColumn("mean_ns", "mean", format_duration),
        TableColumn("p50_ns", "p50", format_duration, rank=3),
        TableColumn("p95_ns", "p95", format_duration, rank=5),
        TableColumn("p99_ns", "p99", format_duration, rank=1),
        TableColumn("max_ns", "max", format_duration, rank=6),
        TableColumn("std_ns", "std", format_duration, rank=7),
    ]
