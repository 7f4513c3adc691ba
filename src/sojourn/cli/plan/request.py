"""From what a user knows of the traffic to a plan: the requests behind `sojourn plan`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.cli.plan.output import PlanReport
from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.core.units import format_duration

if TYPE_CHECKING:
    from sojourn.cli.output import Advance
    from sojourn.core.arrays import Int64Array
    from sojourn.segments.planning.search import MemoryPlan, Wish
    from sojourn.segments.planning.world import ExpectedTraffic
    from sojourn.sketches.lda import LdaParameters
    from sojourn.sketches.sizing.lds import ParetoFit

__all__ = ["FlowRequest", "Wanted", "check_shares", "lda_report", "positive"]

DEFAULT_ERROR = 0.05
MOST_PACKETS = 1e15
MOST_FLOWS = 100_000_000
PUBLISHED_PER_FLOW = 20
RESOLUTION_NS = 1000


@dataclass(frozen=True)
class Wanted:
    """The error at a confidence, and the memory if it is given; `error_given` tells a wish from the default."""

    error: float
    confidence: float
    memory_bytes: int | None
    error_given: bool


def check_shares(error: float | None, confidence: float, memory_bytes: int | None) -> Wanted:
    """Refuse what no plan can be made for."""
    if error is not None and not 0 < error < 10:
        raise ParameterError(f"error {error:g}", where="plan", action="use a share above 0, such as 5%")
    if not 0 < confidence < 1:
        raise ParameterError(
            f"confidence {confidence:g}", where="plan", action="use a share between 0 and 1, such as 95%"
        )
    if memory_bytes is not None and memory_bytes < 1:
        raise ParameterError(f"{memory_bytes} bytes", where="plan", action="give some memory")
    return Wanted(DEFAULT_ERROR if error is None else error, confidence, memory_bytes, error is not None)


def positive(value: float, name: str) -> float:
    """A finite number above 0."""
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


def _loss(share: float) -> float:
    if not 0 <= share < 1:
        raise ParameterError(f"loss {share:g}", where="plan", action="use a share below 1, such as 1%")
    return share


def lda_report(
    *, rate: float, epoch_ns: int, loss: float, wanted: Wanted, variation: float, published_only: bool
) -> PlanReport:
    """An LDA with the ladder of banks that `measure` uses; beside it one bank as the paper sizes it."""
    from sojourn.segments.sizing import LADDER, fit_lda
    from sojourn.sketches.lda import LdaParameters
    from sojourn.sketches.sizing.lda import expected_error, expected_samples, published_lda, smallest_lda

    sent = _packets(rate, epoch_ns)
    lost = sent * _loss(loss)
    report = PlanReport("lda", sent, epoch_ns, error=wanted.error, confidence=wanted.confidence)
    report.traffic = {"rate": rate, "packets": sent, "loss": loss, "variation": variation}
    if not published_only:
        law = {"confidence": wanted.confidence, "variation": variation}

        def describe(parameters: LdaParameters) -> None:
            reached = expected_error(parameters, sent, lost, **law)
            samples = expected_samples(parameters, sent, lost)[0]
            report.set_plan({"lda": parameters.to_mapping()}, parameters.memory_bits, kept=reached <= wanted.error)
            report.expected = {"error": reached, "samples": samples}

        if wanted.memory_bytes is not None:
            describe(fit_lda(wanted.memory_bytes))
            report.is_kept = report.is_kept or not wanted.error_given
        else:
            banks = LdaParameters(rows=1, shares=LADDER)
            describe(smallest_lda(banks, sent, lost, error=wanted.error, **law))

    def published() -> dict[str, object]:
        sizing = published_lda(sent, lost, error=wanted.error, confidence=wanted.confidence, variation=variation)
        bits = LdaParameters(rows=sizing.rows, shares=(sizing.share,)).memory_bits
        return {
            "rows": sizing.rows,
            "share": sizing.share,
            "samples": sizing.samples,
            "memory_bytes": -(-bits // 8),
            "bits_per_packet": bits / sent,
        }

    report.set_published(_or_impossible(published), only=published_only)
    return report


def _or_impossible(make: Callable[[], dict[str, object]]) -> dict[str, object]:
    """What the published equations give, or why they give nothing."""
    try:
        return make()
    except SojournError as error:
        return {"impossible": str(error)}


@dataclass(frozen=True)
class FlowRequest:
    """A sketch that answers per flow, and what is known of the flows."""

    sketch: str
    flows: int | None
    rate: float | None
    epoch_ns: int | None
    capture: str | None
    loss: float
    wanted: Wanted
    flow_size: int
    tail: float
    delay_ns: int
    published_only: bool

    def report(self, advance: Advance) -> PlanReport:
        """Plan, by simulation unless only the published sizing is asked for."""
        from sojourn.segments.planning.search import Wish, plan_memory, predict_error

        wish = Wish(self.wanted.error, self.wanted.confidence, self.flow_size)
        positive(float(self.delay_ns), "--delay")
        traffic, epoch_ns, rate = self._traffic(advance)
        report = PlanReport(self.sketch, traffic.total_packets, epoch_ns, error=wish.error, confidence=wish.confidence)
        report.traffic = {
            "rate": rate,
            "packets": traffic.total_packets,
            "flows": traffic.flows,
            "largest_flow": int(traffic.packets.max()),
            "loss": self.loss,
            "flow_size": wish.least_packets,
        }
        fit = self._fit(traffic.packets, report)
        memory_bits = None if self.wanted.memory_bytes is None else self.wanted.memory_bytes * 8
        if not self.published_only:
            if self.wanted.memory_bytes is not None:
                advance("trying the memory", 0.3)
                planned = predict_error(self.sketch, self.wanted.memory_bytes, traffic, wish)
            else:
                planned = plan_memory(self.sketch, traffic, wish, advance=advance)
            self._describe(report, planned, traffic)
            memory_bits = planned.plan.memory_bits
        published = {"lds": self._published_lds, "colate": self._published_colate}.get(self.sketch)
        if published is not None:
            values = _or_impossible(lambda: published(traffic, wish, fit, memory_bits, epoch_ns))
            report.set_published(values, only=self.published_only)
        elif self.published_only:
            raise UsageError(
                f"no paper sizes {self.sketch}", where=f"plan {self.sketch}", action="leave --method published out"
            )
        return report

    def _traffic(self, advance: Advance) -> tuple[ExpectedTraffic, int, float]:
        """The flows of an epoch, its length, and packets per second."""
        import numpy as np

        from sojourn.segments.planning.world import ExpectedTraffic, pareto_sizes

        loss = _loss(self.loss)
        if self.capture is not None:
            packets, flows, epoch_ns, rate = self._captured(self.capture, advance)
        else:
            if self.flows is None or self.rate is None:
                raise UsageError(
                    "the traffic is not known",
                    where=f"plan {self.sketch}",
                    action="give --flows and --rate, or --from CAPTURE",
                )
            if not 1 <= self.flows <= MOST_FLOWS:
                raise ParameterError(f"{self.flows} flows", where="plan", action=f"use 1 … {MOST_FLOWS}")
            flows, rate = self.flows, positive(self.rate, "--rate")
            epoch_ns = 1_000_000_000 if self.epoch_ns is None else self.epoch_ns
            if not 0.3 <= self.tail <= 10:
                raise ParameterError(f"--tail is {self.tail:g}", where="plan", action="use 0.3 … 10")
            packets = pareto_sizes(flows, _packets(rate, epoch_ns), tail=self.tail)
        return ExpectedTraffic(packets, np.full(len(packets), loss), flows), epoch_ns, rate

    def _captured(self, path: str, advance: Advance) -> tuple[Int64Array, int, int, float]:
        from sojourn.capture.decode.decoder import DecodeOptions
        from sojourn.capture.files.reader import open_capture
        from sojourn.segments.planning.capture import read_traffic

        if self.flows is not None or self.rate is not None:
            raise UsageError("the capture tells flows and rate", where="plan", action="leave --flows and --rate out")
        if self.epoch_ns is not None and self.epoch_ns <= 0:
            raise ParameterError("the epoch has no length", where="plan", action="give --epoch such as 1s")
        with open_capture(path, DecodeOptions()) as reader:
            advance("reading the capture", 0.0)
            read = read_traffic(reader, epoch_ns=self.epoch_ns, name=path)
        return read.packets, read.flows, read.epoch_ns, read.rate

    def _fit(self, packets: Int64Array, report: PlanReport) -> ParetoFit | None:
        """The Pareto law nearest to the sizes, told with how near it is."""
        from sojourn.sketches.sizing.lds import fit_pareto

        try:
            fit = fit_pareto(packets)
        except ParameterError:
            return None
        report.pareto = {
            "shape": fit.shape,
            "low": fit.low,
            "high": fit.high,
            "least": fit.least,
            "distance": fit.distance,
            "plausible": fit.is_plausible,
        }
        return fit

    def _describe(self, report: PlanReport, planned: MemoryPlan, traffic: ExpectedTraffic) -> None:
        prediction = planned.prediction
        report.set_plan(planned.plan.parameters, planned.plan.memory_bits, kept=prediction.is_kept)
        if self.wanted.memory_bytes is not None and not self.wanted.error_given:
            report.is_kept = True
        report.expected = {
            "error": prediction.at_confidence,
            "median_error": prediction.median,
            "share_within": prediction.share,
            "baseline_share": prediction.baseline,
            "answered": prediction.answered,
            "hardest_delays": prediction.delays,
        }
        if report.is_kept:
            return
        report.advice = f"{self.sketch} keeps this error in {prediction.share:.0%} of those flows at best"
        if self.wanted.memory_bytes is not None:
            report.advice = f"this memory keeps the error in {prediction.share:.0%} of those flows; leave --memory out"
        elif traffic.loss > 0 and self.sketch in ("lds", "colate"):
            report.advice += (
                ": lost packets spoil shared cells; `sojourn plan sample` (or auto) sizes what does not mind loss"
            )
        else:
            report.advice += "; ask for a larger error, a lower confidence or larger flows"

    def _published_lds(
        self, traffic: ExpectedTraffic, wish: Wish, fit: ParetoFit | None, _memory: float | None, _epoch: int
    ) -> dict[str, object]:
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

    def _published_colate(
        self, traffic: ExpectedTraffic, wish: Wish, _fit: ParetoFit | None, memory_bits: float | None, epoch_ns: int
    ) -> dict[str, object]:
        from sojourn.sketches.sizing.colate import FlowSums, individual_interval, published_sizing

        if memory_bits is None:
            raise UsageError("the published equations start from a memory", where="plan colate", action="give --memory")
        largest = max(int(traffic.packets.max()), wish.least_packets)
        sums = FlowSums.of_traffic(wish.least_packets, largest, epoch_ns=epoch_ns, resolution_ns=RESOLUTION_NS)
        interval = individual_interval(wish.error, epoch_ns / 2, epoch_ns / 2 + self.delay_ns)
        sizing = published_sizing(
            int(memory_bits),
            sums,
            interval=interval,
            reliability=wish.confidence,
            per_flow=PUBLISHED_PER_FLOW,
        )
        rate = traffic.total_packets / epoch_ns * 1e9
        lasts_ns = math.sqrt(2 * sizing.threshold * RESOLUTION_NS * 1e9 / rate)
        packets = rate * lasts_ns / 1e9
        return {
            "counters": round(sizing.counters),
            "per_flow": round(sizing.per_flow),
            "bits": math.ceil(sizing.bits),
            "threshold": sizing.threshold,
            "promised_interval": sizing.interval,
            "wanted_interval": interval,
            "epoch": format_duration(lasts_ns),
            "memory_bytes": math.ceil(sizing.memory_bits / 8),
            "bits_per_packet": sizing.memory_bits / packets,
        }
