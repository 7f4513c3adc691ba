"""The LDA paper, run again: Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III to V.

`lda.loss` has its Fig. 4 and 5, `lda.probing` Fig. 6; here, what LDA costs. Hardware areas cannot be run.
"""

from __future__ import annotations

from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.papers.lda.loss import bursts_of_loss, delays_and_loss_rates, unknown_loss_rate
from sojourn.papers.lda.probing import active_probing, router_queue
from sojourn.papers.lda.trials import COUNTERS, LAWS, PROBE_BITS, lda_cells, make_trace, plan_of
from sojourn.papers.reproduction import Claim, Outcome, Scale
from sojourn.sketches.lda import Lda, LdaParameters

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
    sender = Lda(literal)
    sender.record_batch(make_trace(0, LAWS[0], plan_of(Scale.SMALL).packets)[0])
    epoch_bits = 8 * len(encode(Epoch("node", "segment", 1, sender)))
    bits = (literal.memory_bits, LdaParameters(rows=COUNTERS).memory_bits)
    packets = [float(-(-one // (8 * PACKET_BYTES))) for one in bits]
    rows = (
        ("kibit", "state of 1024 counters; joint: with digests", 72.0, [one / 1024 for one in bits]),
        ("packets", "control packets per interval; joint: with digests", 7.0, packets),
        ("Hz", "probes in the same bandwidth", 144.0, [one / PROBE_BITS for one in bits]),
    )
    claims = [
        Claim("overhead", unit, what, *values, paper=paper, reproduced=round(values[0]) == paper)
        for unit, what, paper, values in rows
    ]
    wire = Claim("overhead", "kibit", "1024 counters as an epoch on the wire", joint=epoch_bits / 1024)
    return Outcome([*claims, wire])


EXPERIMENTS = (overhead, delays_and_loss_rates, bursts_of_loss, unknown_loss_rate, active_probing, router_queue)
