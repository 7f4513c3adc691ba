"""`sojourn record`: one point's packets into epochs, so that only epochs travel."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from sojourn.cli.options import InnerOption, KeyOption, Live, StrictOption, WordsArgument, grouped
from sojourn.cli.output import progress, warn
from sojourn.cli.segments.measure import SketchOptions
from sojourn.core.errors import UsageError, harmless

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


@grouped
def record(
    live: Live,
    recorded: SketchOptions,
    words: WordsArgument = None,
    direction: Annotated[
        Literal["in", "out", "both"] | None,
        typer.Option(help="Live: packets that come in, go out, or both (the default)."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--write", "-w", metavar="EPOCHS", help="Where to write; - is stdout.")
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
    key: KeyOption = "five-tuple",
    inner: InnerOption = False,
    identity_bytes: Annotated[
        int, typer.Option(min=20, max=65535, help="How much of a packet identifies it, from its IP header on.")
    ] = 68,
    strict: StrictOption = False,
) -> None:
    """Record the packets of one point, a capture or an interface, into epochs."""
    from sojourn.capture.packets import Interface
    from sojourn.segments.record import check_target
    from sojourn.segments.record import record as record_point

    if output is None:
        raise UsageError("there is no file to write to", action="give -w EPOCHS (- is stdout)")
    source, where = live.source(words, "record")
    check_target(source, output)
    if direction is not None:
        if not isinstance(source, Interface):
            raise UsageError("--direction is for a live capture", where="record", action="give -i INTERFACE")
        source = replace(source, direction=direction)
    recording = record_point(
        source,
        where=where,
        flows=flows,
        loss=loss,
        salt=salt,
        weights=weights,
        interval=interval,
        node=node,
        keys=keys,
        key=key,
        inner=inner,
        identity_bytes=identity_bytes,
        strict=strict,
        **recorded.given(),
    )
    with progress("record") as advance:
        recording.write(lambda: _opened(output), advance=advance)
    print("\n".join(map(harmless, recording.summary.split("\n"))), file=sys.stderr)
    warn(recording.warnings)


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    """The file to write to, or stdout, which stays open."""
    return nullcontext(sys.stdout.buffer) if str(path) == "-" else path.open("wb")


record.__doc__ = f"{record.__doc__}\n\n\b\n{_EXAMPLE}"
