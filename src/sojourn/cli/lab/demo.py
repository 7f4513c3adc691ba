"""`sojourn demo`: a generated world, measured by three sketches, with the truth beside every answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sojourn.cli.output import Format, TableColumn, columns, print_json, progress, write_rows
from sojourn.core.estimates import Answer, Estimate
from sojourn.core.keys import flow_fields
from sojourn.core.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from sojourn.lab.demo import Demo, FlowAnswer, SketchResult

HELP = "Measure generated traffic with LDA, LDS and COLATE, and show the truth beside every answer."
EXAMPLE = "Example:  sojourn demo --seed 3 --format json | jq '.sketches[].memory_bytes'"
_TABLE = [
    *columns("flow", left=True),
    TableColumn("packets", "packets", "{:,}".format, rank=1),
    TableColumn("lost", "lost", "{:,}".format, rank=2),
    *columns(true_mean_ns="true mean", mean_ns="estimate", show=format_duration),
    *columns(interval="95 % interval", error="error"),
]


def demo(
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same traffic.")] = 7,
    flows: Annotated[int, typer.Option(min=10, max=200_000, help="Flows to generate.")] = 2_000,
    packets: Annotated[int, typer.Option(min=1_000, max=50_000_000, help="Packets to generate.")] = 400_000,
    output: Annotated[
        Literal["table", "json"], typer.Option("--format", help="Tables for people, JSON for programs.")
    ] = "table",
) -> None:
    with progress("demo") as advance:
        from sojourn.lab.demo import run_demo

        result = run_demo(seed=seed, flows=flows, packets=packets, advance=advance)
    if output == "json":
        print_json(_as_json(result))
    else:
        _print_tables(result)


def _as_json(result: Demo) -> dict[str, object]:
    """The whole answer as one object; times in ns, unknown bounds null."""
    world = result.world
    totals = {
        "seed": world.seed,
        "flows": len(world.keys),
        "sent": len(world.sender),
        "received": len(world.receiver),
        "lost": world.lost,
        "true_mean_ns": round(result.true_mean_ns),
    }
    sketches = []
    for sketch in result.results:
        numbers = {
            "name": sketch.name,
            "note": sketch.note,
            "memory_bytes": round(sketch.memory_bytes),
            "bits_per_packet": sketch.bits_per_packet,
            "packets_per_second": round(sketch.packets_per_second),
        }
        aggregate = {} if sketch.segment is None else {"aggregate": _answer_json(sketch.segment.mean)}
        sketches.append({**numbers, **aggregate, "flows": [_flow_json(flow) for flow in sketch.flows]})
    return {"world": totals, "sketches": sketches}


def _flow_json(flow: FlowAnswer) -> dict[str, Any]:
    return {
        **({} if flow.key is None else flow_fields(flow.key)),
        "packets": flow.packets,
        "lost": flow.lost,
        **_answer_json(flow.answer),
        "true_mean_ns": round(flow.true_mean_ns),
    }


def _answer_json(answer: Answer) -> dict[str, object]:
    if not isinstance(answer, Estimate):
        return {"mean_ns": None, "low_ns": None, "high_ns": None, "samples": 0, "method": None, "reason": answer.reason}
    low, high = (round(bound) if abs(bound) != float("inf") else None for bound in (answer.low, answer.high))
    return {
        "mean_ns": round(answer.value),
        "low_ns": low,
        "high_ns": high,
        "samples": answer.samples,
        "method": answer.method,
    }


def _print_tables(result: Demo) -> None:
    world = result.world
    print(
        f"{plural(len(world.sender), 'packet')} of {plural(len(world.keys), 'flow')} through one queue; "
        f"{world.lost:,} lost ({world.lost / len(world.sender):.2%}); "
        f"true mean delay {format_duration(result.true_mean_ns)}.\n"
        "Each answer is beside the truth; an interval that misses it is marked with !."
    )
    for sketch in result.results:
        print(
            f"\n{sketch.name.upper()} — {sketch.note}\n{format_bytes(sketch.memory_bytes)} per point, "
            f"{sketch.bits_per_packet:.2f} bits per packet, "
            f"{sketch.packets_per_second / 1e6:.0f} million packets recorded per second"
        )
        write_rows([_columns(sketch)], Format.TABLE, table=_TABLE)
        if sketch.segment is not None and isinstance(sketch.segment.mean, Estimate):
            mean, lost = sketch.segment.mean, sketch.segment.lost
            print(
                f"whole segment: {format_duration(mean.value)} ({_interval(mean)}), "
                f"error {_error(mean.value, result.true_mean_ns)}; "
                f"lost {f'{lost.value:,.0f}, exact' if isinstance(lost, Estimate) else '—'}"
            )


def _columns(sketch: SketchResult) -> dict[str, list[object]]:
    rows = []
    for flow in sketch.flows:
        answer = flow.answer
        if isinstance(answer, Estimate):
            inside = "" if answer.contains(flow.true_mean_ns) else " !"
            said = {"interval": _interval(answer), "error": _error(answer.value, flow.true_mean_ns) + inside}
        else:
            said = {"interval": str(answer.reason), "error": "—"}
        rows.append({"flow": str(flow.key), **_flow_json(flow), **said})
    return {column.name: [row[column.name] for row in rows] for column in _TABLE}


def _interval(answer: Estimate) -> str:
    return f"{format_duration(answer.low)} … {format_duration(answer.high)}"


def _error(value: float, truth: float) -> str:
    return f"{(value - truth) / truth:+.2%}" if truth else "—"
