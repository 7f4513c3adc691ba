"""`sojourn rtt`: passive round-trip times of one capture, per flow or sample by sample."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

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
from sojourn.cli.output import Advance, Format, choose_format, progress, write_rows
from sojourn.core.errors import harmless
from sojourn.core.units import format_bytes, parse_duration

if TYPE_CHECKING:
    from sojourn.capture.decode.transport import TransportBatch
    from sojourn.capture.flows.table import FlowTable
    from sojourn.core.batches import PacketBatch
    from sojourn.rtt.round_trips import RttMeter, RttOptions, RttSamples
    from sojourn.rtt.summary import RttSummaries

__all__ = ["PacketSource", "measure_source", "rtt"]

_TABLE_LIMIT = 20

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn rtt office.pcapng --limit 2
  answered by      port  to               port  protocol  kind        samples      min     mean  …
  10.0.0.8        40800  212.199.202.69     80  tcp       timestamps      108  40.0 µs  1.12 ms  …
  212.199.202.69     80  10.0.0.8        40800  tcp       timestamps        1  14.6 ms  14.6 ms  …

  $ sojourn rtt office.pcapng --samples --kind timestamps -w rtt.csv
  $ sojourn rtt office.pcapng --format json | jq '.flows[] | select(.p95_rtt > 100e6)'
  $ sojourn rtt -i eth0 --for 1min tcp port 1883
  $ sojourn rtt -i eth0 --samples
"""


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
    words: WordsArgument = None,
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
    interface: InterfaceOption = "",
    duration: ForOption = None,
    count: CountOption = None,
    promiscuous: PromiscuousOption = False,
    buffer: BufferOption = None,
    inner: InnerOption = False,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Only the flows with most samples; 0 is all. Default: 20 in a table, else all."),
    ] = None,
    max_rtt: Annotated[str, typer.Option(help="What takes longer is no round trip.")] = "60s",
    connections: Annotated[int, typer.Option(help="Connections remembered (power of two).")] = 1 << 16,
    pending: Annotated[int, typer.Option(help="Unanswered packets remembered (power of two).")] = 1 << 18,
    max_flows: Annotated[int, typer.Option(help="Flow directions summarised at most.")] = 1 << 16,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    output_format: FormatOption = None,
    output: WriteOption = None,
) -> None:
    """Measure round-trip times passively: TCP, ICMP echo and MQTT, named by the host that answered."""
    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.rtt.round_trips import RttLimits, RttMeter, RttOptions
    from sojourn.rtt.state import Kind
    from sojourn.rtt.summary import RttSummaries

    how = choose_format(output_format, output)
    limits = RttLimits(connections=connections, pending=pending, max_rtt_ns=parse_duration(max_rtt))
    options = RttOptions(kinds=frozenset(Kind[k.name] for k in kind or ()), limits=limits)
    meter, summaries = RttMeter(options), RttSummaries(max_flows)
    live = LiveLimits(duration, count, promiscuous, buffer)
    if interface:
        _rehearse(options)
    decode = DecodeOptions(inner=inner)
    with open_packets(words, interface, live, command="rtt", options=decode, strict=strict) as source:
        with _no_progress() if samples and sys.stdout.isatty() else progress("rtt") as advance:
            found = measure_source(source, meter, summaries, advance)
            if samples:
                _write_samples(source, found, how, output)
            else:
                deque(found, maxlen=0)
        if not samples:
            _write_flows(source, meter, summaries, how, output, limit)
        _report(source, meter, summaries, verbose=verbose)
        if interface and samples:
            print(_total(source, summaries), file=sys.stderr)


def _rehearse(options: RttOptions) -> None:
    """Compile what samples need, before there are packets to lose."""
    from sojourn.capture.live.reader import rehearsal
    from sojourn.rtt.round_trips import RttMeter

    deque(RttMeter(options).feed(rehearsal()[1]), maxlen=0)


@contextmanager
def _no_progress() -> Iterator[Advance]:
    """Where samples run over the screen, a bar would be in their way."""
    yield lambda step, share: None  # noqa: ARG005


def measure_source(
    source: PacketSource, meter: RttMeter, summaries: RttSummaries, advance: Advance
) -> Iterator[RttSamples]:
    """Feed a source to a meter; every sample is in the summaries before it is given."""
    for _, batch in source.with_transport():
        for found in meter.feed(batch):
            summaries.add(found)
            yield found
        advance(f"{meter.packets:,} packets, {len(summaries):,} flows", source.share_read)


def _write_samples(source: PacketSource, samples: Iterator[RttSamples], how: Format, output: Path | None) -> None:
    """Samples as they are completed; nothing is kept."""
    from sojourn.cli.capture.rtt_rows import FlowNames, sample_block, sample_lines
    from sojourn.rtt.samples import RttSamples

    names = FlowNames(source.flows)
    if how is Format.TABLE:
        with output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
            for found in samples:
                file.writelines(f"{line}\n" for line in sample_lines(found, names))
                file.flush()
        return
    # An empty block first: a header even where there are no samples.
    blocks = (sample_block(found, names) for found in chain([RttSamples.none()], samples))
    write_rows(blocks, how, path=output, name="samples")


def _write_flows(
    source: PacketSource,
    meter: RttMeter,
    summaries: RttSummaries,
    how: Format,
    output: Path | None,
    limit: int | None,
) -> None:
    from sojourn.cli.capture.rtt_rows import FlowNames, flow_block, table_columns

    if limit is None and how is Format.TABLE:
        limit = _TABLE_LIMIT
    write_rows(
        [flow_block(summaries.flows(), FlowNames(source.flows), limit)],
        how,
        path=output,
        fields={"summary": _summary(source, meter, summaries), "ignored": _ignored(source, meter, summaries)},
        table=table_columns(),
    )


def _summary(source: PacketSource, meter: RttMeter, summaries: RttSummaries) -> dict[str, Any]:
    return {
        "samples": summaries.samples,
        "flows": len(summaries),
        "packets": source.packets,
        "ip_packets": source.ip_packets,
        "memory_bytes": meter.memory_bytes,
    }


def _total(source: PacketSource, summaries: RttSummaries) -> str:
    return f"{summaries.samples:,} samples of {len(summaries):,} flows in {source.packets:,} packets"


def _ignored(source: PacketSource, meter: RttMeter, summaries: RttSummaries) -> dict[str, int]:
    """What was left out on the way: while decoding, while timing, while summarising."""
    return source.ignored | meter.ignored | summaries.dropped


def _report(source: PacketSource, meter: RttMeter, summaries: RttSummaries, *, verbose: bool) -> None:
    for warning in source.warnings:
        print(harmless(f"sojourn: warning: {warning}"), file=sys.stderr)
    if not verbose:
        return
    print(f"packets: {source.packets}, of IP: {source.ip_packets}", file=sys.stderr)
    print(f"memory for round-trip times: {format_bytes(meter.memory_bytes)}", file=sys.stderr)
    for reason, count in sorted(_ignored(source, meter, summaries).items(), key=lambda item: -item[1]):
        print(f"left out: {reason}: {count}", file=sys.stderr)


rtt.__doc__ = f"{rtt.__doc__}\n\n\b\n{_EXAMPLE}"
