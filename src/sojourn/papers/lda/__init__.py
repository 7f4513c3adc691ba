"""The LDA paper, run again: Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III to V.

`lda_loss` is its Fig. 4, `lda_banks` Fig. 5, `lda_probing` Fig. 6; here, what LDA costs. Hardware areas cannot be run.
"""

from __future__ import annotations

from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.papers.claims import Claim
from sojourn.papers.lda.against_probing import active_probing, router_queue
from sojourn.papers.lda.banks import unknown_loss_rate
from sojourn.papers.lda.loss import bursts_of_loss, delays_and_loss_rates
from sojourn.papers.lda.trials import COUNTERS, LAWS, lda_cells, make_trace, plan_of
from sojourn.papers.probing import PROBE_BITS
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.sketches.lda import Lda, LdaParameters

__all__ = ["EXPERIMENTS", "NOTES", "TITLE", "overhead"]

TITLE = "LDA: Router Support for Fine-Grained Latency Measurements"
NOTES = """\
Errors are means of |estimate/truth − 1| over the trials of a point: 4 traces × 25 hash salts for the tuned bank, the
bursts and the probing, 4 × 10 elsewhere (the paper has 10 trials). No answer counts as an error of 100 %.

*Literal* is LDA as published, with the sampling α = ½ and Eq. 5; *joint* is our decoder on the same counters, whose
mean is the same, unless the row says otherwise. *Baseline* is active probing in probing and queue, and in banks one
bank tuned to 0.1 % loss. An error "at most" the paper's counts as reproduced up to a quarter above it. Rows without a
paper's figure are ours, but for the four banks, which the paper finds worst at high loss (a ratio below 1).

LDA measures a segment as a whole: the grand mean of all packets, which errors per flow would be compared with, is
LDA's own answer."""
PACKET_BYTES = 1500


def overhead(_scale: Scale) -> Outcome:
    """§IV-C and V: state, control packets of 1500 bytes, and the probes of 64 that the same bandwidth would carry."""
    literal = lda_cells([1.0])
    joint = LdaParameters(rows=COUNTERS)
    sender = Lda(literal)
    sender.record_batch(make_trace(0, LAWS[0], plan_of(Scale.SMALL).packets)[0])
    epoch_bits = 8 * len(encode(Epoch("node", "segment", 1, sender)))

    def packets(bits: float) -> float:
        return float(-(-bits // (8 * PACKET_BYTES)))

    state, ours = literal.memory_bits, joint.memory_bits
    rows = (
        ("state of 1024 counters; joint: with digests", "kibit", 72.0, state / 1024, ours / 1024),
        ("control packets per interval; joint: with digests", "packets", 7.0, packets(state), packets(ours)),
        ("probes in the same bandwidth", "Hz", 144.0, state / PROBE_BITS, ours / PROBE_BITS),
    )
    claims = [
        Claim(
            experiment="overhead",
            quantity=quantity,
            unit=unit,
            paper=paper,
            literal=published,
            joint=own,
            reproduced=round(published) == paper,
        )
        for quantity, unit, paper, published, own in rows
    ]
    sent = Claim(
        experiment="overhead",
        quantity="1024 counters as an epoch on the wire",
        unit="kibit",
        joint=epoch_bits / 1024,
    )
    return Outcome([*claims, sent])


EXPERIMENTS = (overhead, delays_and_loss_rates, bursts_of_loss, unknown_loss_rate, active_probing, router_queue)
