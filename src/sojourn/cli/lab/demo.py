"""`sojourn demo`: a generated world, measured by three sketches, with the truth beside every answer."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.output import cell, console, print_json, progress
from sojourn.core.estimates import Estimate
from sojourn.core.keys import FlowKey, protocol_name
from sojourn.core.units import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.table import Table

    from sojourn.lab.demo import Demo, FlowAnswer, SketchResult

__all__ = ["EXAMPLE", "HELP", "demo"]

HELP = "Measure generated traffic with LDA, LDS and COLATE, and show the truth beside every answer."
EXAMPLE = "Example:  sojourn demo --seed 3 --format json | jq '.sketches[].memory_bytes'"


class DemoFormat(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    JSON = "json"


def demo(
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same traffic.")] = 7,
    flows: Annotated[int, typer.Option(min=10, max=200_000, help="Flows to generate.")] = 2_000,
    packets: Annotated[int, typer.Option(min=1_000, max=50_000_000, help="Packets to generate.")] = 400_000,
    output: Annotated[DemoFormat, typer.Option("--format", help="Tables for people, JSON for programs.")] = (
        DemoFormat.TABLE
    ),
) -> None:
    """Generate, record at two points, estimate, compare."""
    with progress("demo") as advance:
        from sojourn.lab.demo import run_demo

        result = run_demo(seed=seed, flows=flows, packets=packets, advance=advance)
    if output is DemoFormat.JSON:
        print_json(as_json(result))
    else:
        _print_tables(result)


def as_json(result: Demo) -> dict[str, object]:
    """The whole answer as one object; times in ns, unknown bounds null."""
    world = result.world
    return {
        "world": {
            "seed": world.seed,
            "flows": len(world.keys),
            "sent": len(world.sender),
            "received": len(world.receiver),
            "lost": world.lost,
            "true_mean_ns": round(result.true_mean_ns),
        },
        "sketches": [_sketch_json(sketch) for sketch in result.results],
    }


def _sketch_json(sketch: SketchResult) -> dict[str, object]:
    segment = sketch.segment
    aggregate = {} if segment is None else {"aggregate": _answer_json(segment.mean)}
    return {
        "name": sketch.name,
        "note": sketch.note,
        "memory_bytes": round(sketch.memory_bytes),
        "bits_per_packet": sketch.bits_per_packet,
        "packets_per_second": round(sketch.packets_per_second),
        **aggregate,
        "flows": [_flow_json(flow) for flow in sketch.flows],
    }


def _flow_json(flow: FlowAnswer) -> dict[str, object]:
    return {
        **_key_json(flow.key),
        "packets": flow.packets,
        "lost": flow.lost,
        **_answer_json(flow.answer),
        "true_mean_ns": round(flow.true_mean_ns),
    }


def _key_json(key: FlowKey | None) -> dict[str, object]:
    if key is None:
        return {}
    return {
        "src_ip": str(key.src_ip),
        "src_port": key.src_port,
        "dest_ip": str(key.dest_ip),
        "dest_port": key.dest_port,
        "protocol": protocol_name(key.protocol),
    }


def _answer_json(answer: object) -> dict[str, object]:
    if isinstance(answer, Estimate):
        bounds = [round(b) if abs(b) != float("inf") else None for b in (answer.low, answer.high)]
        return {
            "mean_ns": round(answer.value),
            "low_ns": bounds[0],
            "high_ns": bounds[1],
            "samples": answer.samples,
            "method": answer.method,
        }
    reason = getattr(answer, "reason", "unknown")
    return {"mean_ns": None, "low_ns": None, "high_ns": None, "samples": 0, "method": None, "reason": reason}


def _print_tables(result: Demo) -> None:
    screen = console()
    world = result.world
    screen.print(
        f"{len(world.sender):,} packets of {len(world.keys):,} flows through one queue; "
        f"{world.lost:,} lost ({world.lost / len(world.sender):.2%}); "
        f"true mean delay {format_duration(result.true_mean_ns)}."
    )
    screen.print("Each answer stands beside the truth; an interval that misses it is marked [bold]![/bold].")
    for sketch in result.results:
        screen.print()
        screen.print(_sketch_table(sketch))
        if sketch.segment is not None and isinstance(sketch.segment.mean, Estimate):
            mean, lost = sketch.segment.mean, sketch.segment.lost
            screen.print(
                f"  whole segment: {format_duration(mean.value)} "
                f"({format_duration(mean.low)} … {format_duration(mean.high)}), "
                f"error {_error(mean.value, result.true_mean_ns)}; "
                f"lost {f'{lost.value:,.0f}, exact' if isinstance(lost, Estimate) else '—'}"
            )


def _sketch_table(sketch: SketchResult) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{sketch.name.upper()} — {sketch.note}\n{format_bytes(sketch.memory_bytes)} per point, "
        f"{sketch.bits_per_packet:.2f} bits per packet, "
        f"{sketch.packets_per_second / 1e6:.0f} million packets recorded per second",
        title_justify="left",
    )
    table.add_column("flow", no_wrap=True)
    for name in ("packets", "lost", "true mean", "estimate", "95 % interval", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for flow in sketch.flows:
        table.add_row(cell(str(flow.key)), f"{flow.packets:,}", f"{flow.lost:,}", *_answer_cells(flow))
    return table


def _answer_cells(flow: FlowAnswer) -> tuple[str, str, str, str]:
    truth = format_duration(flow.true_mean_ns)
    if not isinstance(flow.answer, Estimate):
        return truth, "—", str(getattr(flow.answer, "reason", "")), "—"
    answer = flow.answer
    interval = f"{format_duration(answer.low)} … {format_duration(answer.high)}"
    inside = "" if answer.contains(flow.true_mean_ns) else " !"
    error = _error(answer.value, flow.true_mean_ns) + inside
    return truth, format_duration(answer.value), interval, error


def _error(value: float, truth: float) -> str:
    return f"{(value - truth) / truth:+.2%}" if truth else "—"
