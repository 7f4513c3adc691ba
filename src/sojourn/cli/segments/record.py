"""`sojourn record`: one point's packets into epochs, so that only epochs travel."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sojourn.cli.capture.packet_source import (
    BufferOption,
    CountOption,
    DirectionName,
    ForOption,
    InterfaceOption,
    LiveLimits,
    PromiscuousOption,
    WordsArgument,
    open_packets,
)
from sojourn.cli.options import InnerOption, StrictOption
from sojourn.cli.output import progress
from sojourn.cli.segments.measure import Method, SketchName, capture_options, parse_changes
from sojourn.core.errors import UsageError, harmless
from sojourn.core.units import format_bytes, parse_bytes, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sojourn.capture.files.reader import CaptureReader
    from sojourn.capture.live.reader import LiveReader
    from sojourn.cli.output import Advance
    from sojourn.core.arrays import PacketBatch
    from sojourn.segments.measurement import SegmentPlan
    from sojourn.segments.two_step import KeyReports

__all__ = ["record"]

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn record ingress.pcap.gz -w in.epochs src net 10.81.0.0/16
  $ sojourn record egress.pcap.gz -w out.epochs src net 10.81.0.0/16
  $ sojourn estimate in.epochs out.epochs

  $ sojourn record -i eth0 --direction out --interval 1min -w eth0.epochs

  $ sojourn record eth0.pcap --no-keys -w eth0.epochs

  $ sojourn record eth0.pcap --sketch lds --weights policy.toml -w eth0.epochs

Both points need the same --sketch, --memory, --flows, --loss, --salt, --weights and --identity-bytes.
"""


def record(
    words: WordsArgument = None,
    interface: InterfaceOption = "",
    duration: ForOption = None,
    count: CountOption = None,
    promiscuous: PromiscuousOption = False,
    buffer: BufferOption = None,
    direction: Annotated[
        DirectionName, typer.Option(help="Live: packets that come in, go out, or both.")
    ] = DirectionName.BOTH,
    output: Annotated[
        Path | None, typer.Option("--write", "-w", metavar="EPOCHS", help="Where to write; - is stdout.")
    ] = None,
    sketch: Annotated[SketchName, typer.Option(help="auto, lds, colate, sample or lda.")] = SketchName.AUTO,
    method: Annotated[
        Method, typer.Option(help="lds: shape it for decoding all flows jointly, or one by one as published.")
    ] = Method.JOINT,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of the sketches.")] = "1MB",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter of the sketch; repeatable."),
    ] = None,
    flows: Annotated[int, typer.Option(min=1, help="Flows expected in an epoch.")] = 1000,
    loss: Annotated[float, typer.Option(min=0, max=1, help="Share of packets expected to be lost.")] = 0.01,
    salt: Annotated[int, typer.Option(min=0, help="Salt of the hash functions.")] = 0,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="POLICY", help="lds: flows that count for more; TOML rules, the first that matches."),
    ] = None,
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Close an epoch at every multiple of this time (1s, 1min).")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Name of the node; else that of the file or interface.")] = None,
    keys: Annotated[
        bool,
        typer.Option("--keys/--no-keys", help="Report the flows that were active; without, ask estimate by --flow."),
    ] = True,
    key: Annotated[
        str, typer.Option(help="What makes a flow: five-tuple, host-pair, dest, prefix/LEN, vlan+five-tuple.")
    ] = "five-tuple",
    inner: InnerOption = False,
    identity_bytes: Annotated[
        int, typer.Option(min=20, max=65535, help="How much of a packet identifies it, from its IP header on.")
    ] = 68,
    strict: StrictOption = False,
) -> None:
    """Record the packets of one point, a capture or an interface, into epochs."""
    if output is None:
        raise UsageError("there is no file to write to", action="give -w EPOCHS (- is stdout)")
    if sketch is SketchName.EXACT:
        raise UsageError("exact matching has no epochs", action="use measure --sketch exact")
    interval_ns = parse_duration(interval) if interval else 0
    with progress("record") as advance:
        from dataclasses import replace

        from sojourn.segments.measurement import plan_segment

        plan = plan_segment(
            sketch.value,
            parse_bytes(memory),
            flows=flows,
            loss=loss,
            salt=salt,
            changes=parse_changes(parameter or []),
            joint=method is Method.JOINT and keys,
        )
        if weights is not None:
            plan = _weighted(plan, weights)
        options = capture_options(key, inner, strict, None).decode
        options = replace(options, identity_bytes=identity_bytes, flow_table=False)
        live = LiveLimits(duration, count, promiscuous, buffer, direction)
        with (
            open_packets(words, interface, live, command="record", options=options, strict=strict) as reader,
            _open_output(output) as file,
        ):
            from sojourn.segments.two_step import KeyReports

            if interface:
                _rehearse(plan)
            name = node or Path(reader.name).name
            reports = KeyReports(reader.keys_at, flows=2 * flows) if keys else None
            epochs, size = _write(reader, plan, file, advance, name=name, interval_ns=interval_ns, keys=reports)
    _report(reader, epochs, size, identity_bytes, reports)


record.__doc__ = f"{record.__doc__}\n\n\b\n{_EXAMPLE}"


def _open_output(path: Path) -> BinaryIO:
    return sys.stdout.buffer if str(path) == "-" else path.open("wb")


def _weighted(plan: SegmentPlan, path: Path) -> SegmentPlan:
    """The plan with the policy among the parameters of its LDS."""
    from dataclasses import replace

    from sojourn.sketches.lds import LdsParameters
    from sojourn.sketches.weights import MAX_TEXT, WeightPolicy

    if plan.name != "lds" or not isinstance(plan.flows, LdsParameters):
        raise UsageError(f"{plan.name} has no weights", where="--weights", action="use --sketch lds")
    with path.open("rb") as file:
        text = file.read(4 * MAX_TEXT + 1).decode("utf-8", "replace")
    policy = WeightPolicy.from_text(text, where=str(path))
    return replace(plan, flows=replace(plan.flows, weights=policy.to_text()))


def _rehearse(plan: SegmentPlan) -> None:
    """Compile what recording needs, before there are packets to lose."""
    from ipaddress import IPv4Address

    from sojourn.capture.live.reader import rehearsal
    from sojourn.core.keys import FlowKey
    from sojourn.segments.two_step import record_epochs

    batch = rehearsal()[0]
    key = FlowKey(IPv4Address(0), 0, IPv4Address(0), 0, 0)
    deque(record_epochs([batch], plan, node="rehearsal", keys_at=lambda rows: [key] * len(rows)), maxlen=0)


def _write(
    reader: CaptureReader | LiveReader,
    plan: SegmentPlan,
    file: BinaryIO,
    advance: Advance,
    *,
    name: str,
    interval_ns: int,
    keys: KeyReports | None,
) -> tuple[int, int]:
    """Write every epoch as it closes, so that what ends the program takes only the open one with it."""
    from sojourn.capture.live.reader import LiveReader
    from sojourn.epochs.wire import encode
    from sojourn.segments.two_step import record_epochs

    count = size = 0
    complete_until = (lambda: reader.complete_until_ns) if isinstance(reader, LiveReader) else None
    for epoch in record_epochs(
        _with_progress(reader, advance),
        plan,
        node=name,
        interval_ns=interval_ns,
        keys=keys,
        keys_at=reader.keys_at,
        complete_until=complete_until,
    ):
        size += file.write(encode(epoch))
        file.flush()
        count += 1
    return count, size


def _with_progress(reader: CaptureReader | LiveReader, advance: Advance) -> Iterator[PacketBatch]:
    for batch in reader:
        advance(reader.name, reader.share_read)
        yield batch


def _report(
    reader: CaptureReader | LiveReader, count: int, size: int, identity_bytes: int, keys: KeyReports | None
) -> None:
    from sojourn.capture.decode.ids import held_by_most

    told = [f"{reader.ip_packets:,} packets in {count} epochs, {format_bytes(size)}"]
    warnings = list(reader.warnings)
    if keys is not None and keys.memory_bits:
        told.append(
            f"{keys.reported:,} keys reported, {keys.expected_missed:.2g} missed in expectation; "
            f"the key reporter took {format_bytes(keys.memory_bits / 8)} beside the sketches"
        )
        if keys.beyond:
            warnings.append(f"{keys.beyond:,} keys exceed what epochs can carry; shorten --interval")
    if ignored := sum(reader.ignored.values()):
        told.append(f"{ignored:,} of {reader.packets:,} frames ignored; sojourn flows -v tells why")
    by_header = reader.snap_length - 14 if reader.snap_length else identity_bytes
    held = min(by_header, held_by_most(reader.cut, reader.ip_packets))
    if held < identity_bytes:
        warnings.append(
            f"the capture holds only {held} bytes of a packet, fewer than the {identity_bytes} that identify it; "
            f"record both points with --identity-bytes {max(20, held)}"
        )
    told += [f"sojourn: warning: {warning}" for warning in warnings]
    print("\n".join(map(harmless, told)), file=sys.stderr)
