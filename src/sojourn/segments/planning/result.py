"""How large a sketch has to be, before anything is recorded: one call, one result.

Beside the plan, which comes from simulation or from the law of the sketch, stands what the paper's equations give.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.core.files import FilePath
from sojourn.core.results import Advance, Columns, Result, silent
from sojourn.core.units import format_bytes, format_duration, parse_bytes, parse_duration, parse_share, plural
from sojourn.segments.planning.ledgers import DAY_NS, LEDGER_SHOWN

if TYPE_CHECKING:
    from sojourn.sketches.sizing.iotm import EpochPlan, Workload

DEFAULT_ERROR = 0.05
USUAL_LOSS = 0.01
LARGE_FLOW = 100
MOST_PACKETS = 1e15
MOST_FLOWS = 100_000_000
PUBLISHED_PER_FLOW = 20
RESOLUTION_NS = 1000

Values = dict[str, object]


class Traffic(TypedDict, total=False):
    """What is known of the traffic; a text is read as on the command line, such as "20ms" or "1%"."""

    rate: float  # packets (iotm: measurements) per second
    epoch: int | str  # how long one sketch records, ns
    loss: float | str
    flows: int  # in an epoch
    capture: FilePath  # instead of flows and rate
    receiver: FilePath  # the capture at the other point: instead of loss and delays, too
    flow_size: int  # the promise is for flows of so many packets or more
    tail: float  # of flow sizes (Pareto) or instances' sizes (Zipf)
    delay: int | str  # mean delay, for COLATE's published equations
    variation: float  # lda: standard deviation of delays over their mean; iotm's means: of values
    held: float  # epochs that a ledger holds
    instances: int  # iotm, as the rest
    period: int | str  # the time that one question spans
    change: float  # deviation of an instance's rate between epochs, over its mean
    spreading: str  # how measurements spread over buckets
    stat: str  # "sum", or "mean": then epochs are planned, for these buckets and for values that stay alike so long
    buckets: int
    per_instance: int
    alike: int | str


@dataclass(frozen=True)
class _Wish:
    """The error at a confidence, or the memory; without either, an error by default."""

    error: float
    confidence: float
    memory_bytes: int | None
    error_given: bool
    published: bool
    advance: Advance

    @property
    def only_memory(self) -> bool:
        """Whatever error the memory buys is what was asked for."""
        return self.memory_bytes is not None and not self.error_given


@dataclass(frozen=True, eq=False, repr=False)
class PlanResult(Result):
    """A plan for one sketch and epoch; ``is_kept`` tells whether the wanted error can be reached."""

    rows_name = "quantities"

    sketch: str
    packets: float
    epoch_ns: int
    error: float
    confidence: float
    traffic: Values
    plan: Values | None = None
    expected: Values = field(default_factory=dict)
    published: Values | None = None
    pareto: Values | None = None
    advice: str = ""
    is_kept: bool = True
    storage_lasts_ns: float | None = None

    def fields(self) -> dict[str, object]:
        return {
            "sketch": self.sketch,
            "traffic": self.traffic,
            "epoch_ns": self.epoch_ns,
            "wanted": {"error": self.error, "confidence": self.confidence},
            "kept": self.is_kept,
            "plan": self.plan,
            "expected": self.expected,
            "published": self.published,
            "pareto": self.pareto,
            "storage_lasts_ns": self.storage_lasts_ns,
            "advice": self.advice or None,
        }

    def to_dict(self) -> dict[str, Any]:
        return self.fields()

    def columns(self) -> Columns:
        """What was planned beside what the paper's equations give, both as texts for people."""
        planned: Values = {**(self.plan or {}), **self.expected}
        published = self.published or {}
        parameters: Any = planned.pop("parameters", {})
        rows = [("epoch", format_duration(self.epoch_ns), "")] if self.plan else []
        names = [name for name in dict.fromkeys([*planned, *published]) if name != "impossible"]
        rows += [(_SHOWN.get(name, (name,))[0], _shown(name, planned), _shown(name, published)) for name in names]
        for kind, values in parameters.items():
            rows.append((kind, ", ".join(f"{symbol}={_short(value)}" for symbol, value in values.items()), ""))
        if self.storage_lasts_ns is not None:
            rows.append(("storage lasts", f"{self.storage_lasts_ns / DAY_NS:,.1f} days", ""))
        return {name: [row[k] for row in rows] for k, name in enumerate(("quantity", "planned", "published"))}

    @property
    def summary(self) -> str:
        lines = [f"{row['quantity']}: {row['planned']}" for row in self if row["planned"]]
        return "\n".join([*lines, *self.notes, *([self.advice] if self.advice else [])])

    @property
    def notes(self) -> list[str]:
        """What needs words: why the paper gives nothing, and how well flow sizes follow Pareto's law."""
        notes = []
        if self.published is not None and "impossible" in self.published:
            notes.append(f"as published: {self.published['impossible']}")
        if self.pareto is not None:
            fit: dict[str, Any] = self.pareto
            judged = "plausible" if fit["plausible"] else "not plausible"
            notes.append(
                f"flow sizes: Pareto with tail {fit['shape']:.3g} (95 % {fit['low']:.3g} … {fit['high']:.3g}) from "
                f"{plural(fit['least'], 'packet')} on, {judged} (largest distance {fit['distance']:.3f})"
            )
        return notes

    def _with_plan(self, parameters: Values, memory_bits: int, expected: Values, *, kept: bool) -> PlanResult:
        memory_bytes = -(-memory_bits // 8)
        planned: Values = {
            "memory_bytes": memory_bytes,
            "bits_per_packet": memory_bits / self.packets,
            "bytes_per_day": memory_bytes * DAY_NS / self.epoch_ns,
            "parameters": parameters,
        }
        return replace(self, plan=planned, expected=expected, is_kept=kept)

    def _with_published(self, make: Callable[[], Values]) -> PlanResult:
        """Beside it what the paper's equations give, or why they give nothing; alone they decide what can be kept."""
        try:
            values = make()
        except SojournError as error:
            values = {"impossible": str(error)}
        return replace(self, published=values, is_kept=self.is_kept if self.plan else "impossible" not in values)


_SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    **LEDGER_SHOWN,
    "memory_bytes": ("memory per point", format_bytes),
    "bits_per_packet": ("bits per packet", "{:.3g}".format),
    "bytes_per_day": ("storage per day", format_bytes),
    "error": ("error at the confidence", "{:.2%}".format),
    "median_error": ("median error", "{:.3%}".format),
    "share_within": ("flows within the error", "{:.1%}".format),
    "baseline_share": ("… by answering the mean of all", "{:.1%}".format),
    "answers_within": ("answers within the error", "{:.1%}".format),
    "epochs": ("epochs per question", str),
    "answered": ("flows answered", "{:.1%}".format),
    "hardest_delays": ("hardest kind of delays", str),
    "samples": ("packets in usable cells", "{:,.0f}".format),
    "share": ("sampled share", "{:.3g}".format),
    "small_collisions": ("only small collisions", "{:.1%}".format),
    "per_flow": ("counters per flow", str),
    "bits": ("bits per counter", str),
    "threshold": ("threshold T", "{:.3g}".format),
    "promised_interval": ("interval B promised", "{:.3g}".format),
    "wanted_interval": ("interval B wanted", "{:.3g}".format),
    "epoch": ("epoch until T is reached", str),
}


def _shown(name: str, values: Values) -> str:
    if name not in values:
        return ""
    value = values[name]
    if isinstance(value, float) and value == math.inf:
        return "no answer"
    return _SHOWN[name][1](value) if name in _SHOWN else str(value)


def _short(value: object) -> str:
    return "/".join(f"{v:g}" for v in value) if isinstance(value, list) else str(value)


def plan(
    sketch: str,
    *,
    error: float | str | None = None,
    confidence: float | str = 0.95,
    memory: int | str | None = None,
    storage: int | str | None = None,
    published: bool = False,
    advance: Advance = silent,
    **traffic: Unpack[Traffic],
) -> PlanResult:
    """Size a sketch: the memory for a wanted relative error, or the error that a memory buys.

    `sketch` is lds, colate, sample, auto or ledger (per flow), lda (a segment) or iotm (a node's buckets). The error is
    that of a share `confidence` of flows or runs. `storage` is a disk for epochs; `published`: the paper's sizes only.
    """
    makers = {
        "lda": _plan_lda,
        "iotm": _plan_iotm,
        "ledger": _plan_ledger,
        **dict.fromkeys(("lds", "colate", "sample", "auto"), _plan_flows),
    }
    if sketch not in makers:
        raise ParameterError(f"there is no sketch {sketch!r}", where="plan", action=f"choose of {', '.join(makers)}")
    wish = _Wish(
        DEFAULT_ERROR if error is None else parse_share(error, where="--error"),
        parse_share(confidence, where="--confidence"),
        None if memory is None else parse_bytes(memory, where="--memory"),
        error is not None,
        published,
        advance,
    )
    if not 0 < wish.error < 10:
        raise ParameterError(f"error {wish.error:g}", where="plan", action="use a share above 0, such as 5%")
    if not 0 < wish.confidence < 1:
        action = "use a share between 0 and 1, such as 95%"
        raise ParameterError(f"confidence {wish.confidence:g}", where="plan", action=action)
    if wish.memory_bytes is not None and wish.memory_bytes < 1:
        raise ParameterError(f"{wish.memory_bytes} bytes", where="plan", action="give some memory")
    result = makers[sketch](sketch, traffic, wish)
    if storage is None or result.plan is None:
        return result
    per_day = float(str(result.plan["bytes_per_day"]))
    return replace(result, storage_lasts_ns=parse_bytes(storage, where="--storage") * DAY_NS / per_day)


def _positive(value: float, name: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ParameterError(f"{name} is {value:g}", where="plan", action="use a number above 0")
    return value


def _packets(rate: float, epoch_ns: int) -> float:
    """Packets in an epoch, within reason."""
    if epoch_ns <= 0:
        raise ParameterError("the epoch has no length", where="plan", action="give --epoch such as 1s")
    packets = rate * epoch_ns / 1e9
    if not 1 <= packets <= MOST_PACKETS:
        raise ParameterError(
            f"{packets:.3g} packets in an epoch", where="plan", action=f"keep rate × epoch in 1 … {MOST_PACKETS:.0e}"
        )
    return packets


def _loss(share: float | str) -> float:
    loss = parse_share(share, where="--loss")
    if not 0 <= loss < 1:
        raise ParameterError(f"loss {loss:g}", where="plan", action="use a share below 1, such as 1%")
    return loss


def _plan_lda(sketch: str, traffic: Traffic, wish: _Wish) -> PlanResult:
    """An LDA with the ladder of banks that `measure` uses; beside it one bank as the paper sizes it."""
    from sojourn.segments.planning.layout import LADDER, fit_lda
    from sojourn.sketches.lda import LdaParameters
    from sojourn.sketches.sizing.lda import expected_error, expected_samples, published_lda, smallest_lda

    if "rate" not in traffic:
        raise UsageError("the packet rate is missing", where="plan lda", action="give --rate")
    rate, epoch_ns = _positive(traffic["rate"], "--rate"), parse_duration(traffic.get("epoch", "1s"), where="--epoch")
    variation = _positive(traffic.get("variation", 1.0), "--variation")
    sent, loss = _packets(rate, epoch_ns), _loss(traffic.get("loss", 0.01))
    lost = sent * loss
    known: Values = {"rate": rate, "packets": sent, "loss": loss, "variation": variation}
    result = PlanResult(sketch, sent, epoch_ns, wish.error, wish.confidence, known)
    law = {"confidence": wish.confidence, "variation": variation}
    if not wish.published:
        if wish.memory_bytes is not None:
            parameters = fit_lda(wish.memory_bytes)
        else:
            parameters = smallest_lda(LdaParameters(rows=1, shares=LADDER), sent, lost, error=wish.error, **law)
        reached = expected_error(parameters, sent, lost, **law)
        result = result._with_plan(
            {"lda": parameters.to_mapping()},
            parameters.memory_bits,
            {"error": reached, "samples": expected_samples(parameters, sent, lost)[0]},
            kept=reached <= wish.error or wish.only_memory,
        )

    def published() -> Values:
        sizing = published_lda(sent, lost, error=wish.error, **law)
        bits = LdaParameters(rows=sizing.rows, shares=(sizing.share,)).memory_bits
        return {
            "rows": sizing.rows,
            "share": sizing.share,
            "samples": sizing.samples,
            "memory_bytes": -(-bits // 8),
            "bits_per_packet": bits / sent,
        }

    return result._with_published(published)


def _plan_ledger(sketch: str, traffic: Traffic, wish: _Wish) -> PlanResult:
    """Receipts, and the ledger that reads them: exact while no more is lost than planned for."""
    from sojourn.segments.planning.ledgers import fit_receipt, ledger_costs

    if wish.error_given or wish.memory_bytes is not None or wish.published:
        what = "a ledger is exact, and as large as the traffic"
        raise UsageError(what, where="plan ledger", action="leave out --error, --memory and --method")
    if "rate" not in traffic or "flows" not in traffic:
        raise UsageError("the traffic is not known", where="plan ledger", action="give --flows and --rate")
    rate, epoch_ns = _positive(traffic["rate"], "--rate"), parse_duration(traffic.get("epoch", "1s"), where="--epoch")
    flows, loss, packets = traffic["flows"], _loss(traffic.get("loss", USUAL_LOSS)), round(_packets(rate, epoch_ns))
    costs = ledger_costs(fit_receipt(packets, flows=flows, loss=loss), packets, flows, held=traffic.get("held", 4.0))
    known: Values = {"rate": rate, "packets": packets, "flows": flows, "loss": loss}
    result = PlanResult(sketch, packets, epoch_ns, wish.error, wish.confidence, known, costs.planned(epoch_ns))
    return replace(result, expected=costs.expected(rate), advice=costs.advice(flows, loss))


def _plan_iotm(sketch: str, traffic: Traffic, wish: _Wish) -> PlanResult:
    """A node's bucket array: sums per process or flow."""
    from sojourn.sketches.sizing.iotm import Workload, error_at, plan_bucket_array, published_deviation

    if "instances" not in traffic or "rate" not in traffic:
        raise UsageError("the workload is not known", where="plan iotm", action="give --instances and --rate")
    workload = Workload(
        instances=traffic["instances"],
        rate=traffic["rate"],
        period_ns=parse_duration(traffic.get("period", "10min"), where="--period"),
        tail=traffic.get("tail", 1.0),
        change=traffic.get("change", 0.5),
    )
    if traffic.get("stat") == "mean":
        return _plan_means(sketch, workload, traffic, wish)
    planned = plan_bucket_array(
        workload,
        error=wish.error,
        confidence=wish.confidence,
        memory_bytes=wish.memory_bytes,
        spreading=traffic.get("spreading", "round-robin"),
    )
    measured, parameters = workload.measurements / planned.epochs, planned.parameters
    result = PlanResult(sketch, measured, planned.epoch_ns, wish.error, wish.confidence, dict(vars(workload)))
    result = result._with_plan(
        {"bucket_array": parameters.to_mapping()},
        planned.memory_bits,
        _of_epochs(planned),
        kept=planned.is_kept or wish.only_memory,
    )
    if not result.is_kept:
        advice = (
            f"at best {planned.share:.0%} of answers are within the error; ask for a larger one, measure longer, or let"
            " measurements take turns (--spreading round-robin)"
        )
        result = replace(result, advice=advice)
    relative = published_deviation(workload.sizes, n=parameters.buckets, m=parameters.per_instance) / workload.sizes
    return result._with_published(
        lambda: {"error": error_at(relative, wish.confidence), "median_error": error_at(relative, 0.5)}
    )


def _of_epochs(planned: EpochPlan) -> Values:
    """What is expected of answers about a period."""
    return {
        "epochs": planned.epochs,
        "error": planned.error,
        "median_error": planned.median_error,
        "answers_within": planned.share,
    }


def _plan_means(sketch: str, workload: Workload, traffic: Traffic, wish: _Wish) -> PlanResult:
    """The epochs, each with a salt of its own, of an array of given size whose values have means."""
    from sojourn.sketches.bucket_array import BucketArrayParameters
    from sojourn.sketches.sizing.means import Variation, plan_epochs

    if wish.memory_bytes is not None:
        raise UsageError("a memory is not planned for means", where="plan iotm", action="give --buckets instead")
    n, m = traffic.get("buckets", 64), traffic.get("per_instance", 4)
    alike_ns = parse_duration(traffic.get("alike", "500ms"), where="--alike")
    variation = Variation(values=traffic.get("variation", 1.0), alike_ns=alike_ns)
    planned = plan_epochs(
        workload.sizes,
        workload.period_ns,
        n=n,
        m=m,
        variation=variation,
        error=wish.error,
        confidence=wish.confidence,
    )
    parameters = BucketArrayParameters(buckets=n, per_instance=m, bits=48, count_bits=24)
    known = {**vars(workload), "variation": variation.values, "alike_ns": alike_ns}
    measured = workload.measurements / planned.epochs
    result = PlanResult(sketch, measured, planned.epoch_ns, wish.error, wish.confidence, known)
    result = result._with_plan(
        {"bucket_array": parameters.to_mapping()},
        parameters.memory_bits,
        _of_epochs(planned),
        kept=planned.is_kept,
    )
    if planned.is_kept:
        return result
    advice = (
        f"at best {planned.share:.0%} of answers are within the error; ask for a larger one, ask about a longer time,"
        " or give more --buckets"
    )
    return replace(result, advice=advice)


def _plan_flows(sketch: str, traffic: Traffic, wish: _Wish) -> PlanResult:
    """A sketch that answers per flow, by simulation unless only the published sizing is asked for."""
    from sojourn.segments.planning.search import Wish, plan_memory, predict_error, surveyed_wish
    from sojourn.sketches.sizing.lds import fit_pareto

    delay_ns = int(_positive(parse_duration(traffic.get("delay", "10ms"), where="--delay"), "--delay"))
    expected, epoch_ns, rate = _expected_traffic(sketch, traffic, wish.advance)
    asked = Wish(wish.error, wish.confidence, traffic.get("flow_size", LARGE_FLOW))
    if "receiver" in traffic and "flow_size" not in traffic:
        asked = surveyed_wish(expected, wish.error, wish.confidence)
    known: Values = {
        "rate": rate,
        "packets": expected.total_packets,
        "flows": expected.flows,
        "largest_flow": int(expected.packets.max()),
        "loss": expected.loss,
        "flow_size": asked.least_packets,
    }
    result = PlanResult(sketch, expected.total_packets, epoch_ns, wish.error, wish.confidence, known)
    fit = None
    with suppress(ParameterError):  # where all flows have one size
        fit = fit_pareto(expected.packets)
        names = ("shape", "low", "high", "least", "distance")
        law: Values = {name: getattr(fit, name) for name in names} | {"plausible": fit.is_plausible}
        result = replace(result, pareto=law)
    memory_bits = None if wish.memory_bytes is None else wish.memory_bytes * 8
    if not wish.published:
        if wish.memory_bytes is not None:
            wish.advance("trying the memory", 0.3)
            planned = predict_error(sketch, wish.memory_bytes, expected, asked)
        else:
            planned = plan_memory(sketch, expected, asked, advance=wish.advance)
        memory_bits = planned.plan.memory_bits
        result = _with_prediction(result, planned, wish, expected.loss)
    if sketch == "lds":
        return result._with_published(lambda: _published_lds(expected, asked, fit))
    if sketch == "colate":
        return result._with_published(lambda: _published_colate(expected, asked, memory_bits, epoch_ns, delay_ns))
    if wish.published:
        raise UsageError(f"no paper sizes {sketch}", where=f"plan {sketch}", action="leave --method published out")
    return result


def _expected_traffic(sketch: str, traffic: Traffic, advance: Advance) -> tuple[Any, int, float]:
    """The flows of an epoch, its length, and packets per second."""
    from sojourn.segments.planning.world import ExpectedTraffic, pareto_sizes

    # Cells that are decoded by themselves are planned as published, for no loss; auto as `record` does by default.
    loss = _loss(traffic.get("loss", USUAL_LOSS if sketch == "auto" else 0.0))
    epoch_ns = parse_duration(traffic["epoch"], where="--epoch") if "epoch" in traffic else None
    if "receiver" in traffic:
        return _surveyed(sketch, traffic, advance)
    if "capture" in traffic:
        packets, flows, epoch_ns, rate = _captured(traffic, epoch_ns, advance)
    else:
        if "flows" not in traffic or "rate" not in traffic:
            action = "give --flows and --rate, or --from CAPTURE"
            raise UsageError("the traffic is not known", where=f"plan {sketch}", action=action)
        flows = traffic["flows"]
        if not 1 <= flows <= MOST_FLOWS:
            raise ParameterError(f"{flows} flows", where="plan", action=f"use 1 … {MOST_FLOWS}")
        rate, tail = _positive(traffic["rate"], "--rate"), traffic.get("tail", 0.9)
        epoch_ns = 1_000_000_000 if epoch_ns is None else epoch_ns
        if not 0.3 <= tail <= 10:
            raise ParameterError(f"--tail is {tail:g}", where="plan", action="use 0.3 … 10")
        packets = pareto_sizes(flows, _packets(rate, epoch_ns), tail=tail)
    return ExpectedTraffic(packets, np.full(len(packets), loss), flows), epoch_ns, rate


def _surveyed(sketch: str, traffic: Traffic, advance: Advance) -> tuple[Any, int, float]:
    """The flows of two captures as `measure --error` plans for them: both are one epoch."""
    from sojourn.matching.clock.correction import ClockMode
    from sojourn.segments.planning.search import expect_surveyed
    from sojourn.segments.record import decode_options
    from sojourn.segments.survey import CaptureOptions, CapturePoint, share_wire_sizes, survey_captures

    if "capture" not in traffic:
        action = "give the sender's capture, too, as --from"
        raise UsageError("the receiver's capture is alone", where=f"plan {sketch}", action=action)
    if told := [name for name in ("flows", "rate", "loss", "epoch") if name in traffic]:
        raise UsageError(f"the captures tell the {told[0]}", where="plan", action=f"leave --{told[0]} out")
    options = CaptureOptions(decode_options("five-tuple", inner=False))
    points = CapturePoint(os.fspath(traffic["capture"]), options), CapturePoint(os.fspath(traffic["receiver"]), options)
    share_wire_sizes(points)
    survey = survey_captures(points, clock=ClockMode(), advance=advance)
    length = max(survey.sender.last_ns - survey.sender.first_ns, 1)
    return expect_surveyed(survey), length, survey.packets * 1e9 / length


def _captured(traffic: Traffic, epoch_ns: int | None, advance: Advance) -> tuple[Int64Array, int, int, float]:
    from sojourn.capture.files.reader import open_capture
    from sojourn.segments.planning.world import read_traffic

    if "flows" in traffic or "rate" in traffic:
        raise UsageError("the capture tells flows and rate", where="plan", action="leave --flows and --rate out")
    if epoch_ns is not None and epoch_ns <= 0:
        raise ParameterError("the epoch has no length", where="plan", action="give --epoch such as 1s")
    advance("reading the capture", 0.0)
    with open_capture(traffic["capture"]) as reader:
        return read_traffic(reader, epoch_ns=epoch_ns, name=os.fspath(traffic["capture"]))


def _with_prediction(result: PlanResult, planned: Any, wish: _Wish, loss: float) -> PlanResult:
    """What simulation predicts, and what to do where that is not enough."""
    prediction = planned.prediction
    result = result._with_plan(
        planned.plan.parameters,
        planned.plan.memory_bits,
        {
            "error": prediction.at_confidence,
            "median_error": prediction.median,
            "share_within": prediction.share,
            "baseline_share": prediction.baseline,
            "answered": prediction.answered,
            "hardest_delays": prediction.delays,
        },
        kept=prediction.is_kept or wish.only_memory,
    )
    if result.is_kept:
        return result
    advice = f"{result.sketch} keeps this error in {prediction.share:.0%} of those flows at best"
    if wish.memory_bytes is not None:
        advice = f"this memory keeps the error in {prediction.share:.0%} of those flows; leave --memory out"
    elif loss > 0 and result.sketch in ("lds", "colate"):
        advice += ": lost packets spoil shared cells; `sojourn plan sample` (or auto) sizes what does not mind loss"
    else:
        advice += "; ask for a larger error, a lower confidence or larger flows"
    return replace(result, advice=advice)


def _published_lds(traffic: Any, wish: Any, fit: Any) -> Values:
    from sojourn.sketches.lds import LdsParameters
    from sojourn.sketches.sizing.lds import published_lds

    if fit is None:
        raise ParameterError("all flows have one size", where="lds sizing", action="it needs a Pareto law")
    strangers = wish.error * wish.least_packets
    sizing = published_lds(traffic.flows, tail=fit.tail(strangers), miss=1 - wish.confidence)
    bits = LdsParameters(rows=sizing.rows, columns=sizing.columns, spread=sizing.spread).memory_bits
    return {
        "rows": sizing.rows,
        "columns": sizing.columns,
        "spread": sizing.spread,
        "small_collisions": sizing.small_collisions,
        "memory_bytes": -(-bits // 8),
        "bits_per_packet": bits / traffic.total_packets,
    }


def _published_colate(traffic: Any, wish: Any, memory_bits: float | None, epoch_ns: int, delay_ns: int) -> Values:
    from sojourn.sketches.sizing.colate import FlowSums, individual_interval, published_sizing

    if memory_bits is None:
        raise UsageError("the published equations start from a memory", where="plan colate", action="give --memory")
    largest = max(int(traffic.packets.max()), wish.least_packets)
    sums = FlowSums.of_traffic(wish.least_packets, largest, epoch_ns=epoch_ns, resolution_ns=RESOLUTION_NS)
    interval = individual_interval(wish.error, epoch_ns / 2, epoch_ns / 2 + delay_ns)
    sizing = published_sizing(
        int(memory_bits), sums, interval=interval, reliability=wish.confidence, per_flow=PUBLISHED_PER_FLOW
    )
    rate = traffic.total_packets / epoch_ns * 1e9
    lasts_ns = math.sqrt(2 * sizing.threshold * RESOLUTION_NS * 1e9 / rate)
    return {
        "counters": round(sizing.counters),
        "per_flow": round(sizing.per_flow),
        "bits": math.ceil(sizing.bits),
        "threshold": sizing.threshold,
        "promised_interval": sizing.interval,
        "wanted_interval": interval,
        "epoch": format_duration(lasts_ns),
        "memory_bytes": math.ceil(sizing.memory_bits / 8),
        "bits_per_packet": sizing.memory_bits / (rate * lasts_ns / 1e9),
    }
