"""COLATE under loss (§1.4), and with several peers per observation point (Fig. 8).

The loss variant keeps several vectors; the most frequent one that lost nothing answers. The paper gives no figures for
it. A vector survives a loss rate l with N packets with probability (1 − l)ᴺ, so of a million packets at 0.1 % loss one
that holds a thousand has a chance, a thousandth of every flow.

Several peers: a point that talks to two others records all its packets into one vector, so only half of what a vector
holds has a counterpart in the other. The paper finds the accuracy unchanged.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, PacketBatch
from sojourn.estimation.published.colate import estimate_flow_means, estimate_means_between
from sojourn.lab.traffic import Traffic, make_traffic
from sojourn.papers.claims import Claim
from sojourn.papers.colate.methods import (
    Reading,
    grand_mean,
    published_pair,
    read_joint,
    read_sample,
    values_of,
)
from sojourn.papers.colate.worlds import LEAST_PACKETS, law_world, only_large
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale

__all__ = ["loss_variant", "measure_loss", "several_peers"]

LOSSES = (0.001, 0.003, 0.01)
BITS = 4.0
# Halving shares; the last vector takes what is left, so that they add up to 1.
VECTOR_SHARES = (*(2.0**-i for i in range(1, 16)), 2.0**-15)
VECTOR_PER_FLOW = 8
# Many counters with few packets each: a loss spoils little.
JOINT_PER_FLOW = 32
PEER_FLOWS = {Scale.SMALL: 18_000, Scale.PAPER: 387_000}
PEER_BITS = 4.0
MEDIUM = 0.05
SEED = 45


def measure_loss(world: Traffic) -> list[Reading]:
    """The published variant with j drawn independently and by hash, the joint decoder, samples and the grand mean."""
    asked = only_large(world)
    truth = world.truth
    readings = []
    for name, choice in (("literal (independent j)", "random"), ("loss variant, coordinated j", "packet")):
        pair = published_pair(world, BITS, choice=choice, per_flow=VECTOR_PER_FLOW, shares=VECTOR_SHARES)
        answers = estimate_flow_means(*pair, truth.flow_id[asked], truth.sent[asked])
        readings.append(Reading.of(name, "literal", values_of(answers), truth.mean_ns[asked]))
    joint = read_joint(world, asked, BITS, per_flow=JOINT_PER_FLOW)
    return [*readings, joint, read_sample(world, asked, BITS), grand_mean(world, asked)]


def loss_variant(scale: Scale) -> Outcome:
    """Large flows' means under 0.1 to 1 % independent loss, at 4 bits per packet."""
    results = {loss: measure_loss(law_world("per-flow", scale, seed=SEED, loss=loss)) for loss in LOSSES}
    claims = [claim for loss, readings in results.items() for claim in _loss_claims(loss, readings)]
    names = [(reading.name, reading.kind) for reading in next(iter(results.values()))]
    percent = [100 * loss for loss in LOSSES]
    shares = {
        "answered": [[r.answered_percent for r in readings] for readings in results.values()],
        "within 5 %": [[r.share_within(MEDIUM) for r in readings] for readings in results.values()],
    }
    panels = {
        title: [Line(name, percent, [row[i] for row in rows], kind) for i, (name, kind) in enumerate(names)]
        for title, rows in shares.items()
    }
    figure = Figure(
        name="loss", x_label="loss [%]", y_label=f"flows ≥ {LEAST_PACKETS} packets [%]", panels=panels, log_x=True
    )
    return Outcome(claims, [figure])


def _loss_claims(loss: float, readings: list[Reading]) -> list[Claim]:
    literal, coordinated, joint, sample, grand = readings
    title = f"loss of {loss:.1%}, per-flow, {BITS:g} bit/packet, {len(VECTOR_SHARES)} vectors"
    return [
        Claim(experiment=title, quantity=f"flows ≥ {LEAST_PACKETS} answered (baseline: sample)", unit="% of flows",
              literal=literal.answered_percent, joint=joint.answered_percent, baseline=sample.answered_percent),
        Claim(experiment=title, quantity="within 5 % (baseline: grand mean)", unit="% of flows",
              literal=literal.share_within(MEDIUM), joint=joint.share_within(MEDIUM),
              baseline=grand.share_within(MEDIUM)),
        Claim(experiment=title, quantity="within 5 %, coordinated j (baseline: sample)", unit="% of flows",
              literal=coordinated.share_within(MEDIUM), joint=joint.share_within(MEDIUM),
              baseline=sample.share_within(MEDIUM)),
    ]  # fmt: skip


def several_peers(scale: Scale) -> Outcome:
    """One link alone, and the same link when both its ends talk to a third point as well."""
    flows = PEER_FLOWS[scale]
    links = [make_traffic(seed=SEED + i, flows=flows, delays="per-flow") for i in range(3)]
    alone, mixed = links[0], _mixed(links)
    asked = only_large(alone)
    joint = read_joint(alone, asked, PEER_BITS).median_percent
    grand = grand_mean(alone, asked).median_percent
    claims = []
    for name, choice in (("literal", "random"), ("coordinated j", "packet")):
        errors = [_point_by_point(world, asked, choice).median_percent for world in (alone, mixed)]
        claims += [
            Claim(experiment=f"{peers} peer{'s' * (peers > 1)} per point ({int(asked.sum())} flows)", unit="%",
                  quantity=f"median error, {name} (joint: one vector per peer; baseline: grand mean)",
                  literal=error, joint=joint, baseline=grand,
                  reproduced=error <= 1.5 * errors[0] if peers > 1 else None)
            for peers, error in enumerate(errors, start=1)
        ]  # fmt: skip
    return Outcome(claims)


def _point_by_point(world: Traffic, asked: BoolArray, choice: str) -> Reading:
    """Theorem 2 at each point on its own, whatever else went past it."""
    truth = world.truth
    pair = published_pair(world, PEER_BITS, choice=choice)
    answers = estimate_means_between(*pair, truth.flow_id[asked], truth.sent[asked])
    return Reading.of(choice, "literal", values_of(answers), truth.mean_ns[asked])


def _mixed(links: list[Traffic]) -> Traffic:
    """The first link's truth, with a second link's packets at its sender and a third's at its receiver."""
    first, second, third = links
    return Traffic(
        _joined(first.sender, second.sender),
        _joined(first.receiver, third.receiver),
        first.flow,
        first.delay_ns,
        first.delivered,
        first.truth,
    )


def _joined(one: PacketBatch, other: PacketBatch) -> PacketBatch:
    columns = (np.concatenate([getattr(one, n), getattr(other, n)]) for n in ("flow_id", "packet_id", "time_ns"))
    flow_id, packet_id, time_ns = columns
    order = np.argsort(time_ns, kind="stable")
    size = np.concatenate([one.size_bytes, other.size_bytes])
    return PacketBatch(flow_id[order], packet_id[order], time_ns[order], size[order])
