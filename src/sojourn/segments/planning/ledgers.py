"""How large receipts and ledgers are made, for expected traffic; and what they come to, in bits and in processor time.

Groups have so many packets that about `LOSSES` of them are lost: fewer need more sums to spare, more take longer to
decode. A receipt folds to what its packets need, so that room for `ROOM` times the expected packets costs memory alone.
Of the memory that a plan is given, all is for the sample and the flow-blind LDA, which answer what cannot be decoded
and tell percentiles; receipts are sized by the traffic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sojourn.core.errors import ParameterError
from sojourn.core.units import format_bytes
from sojourn.sketches.ledgers.ledger import BYTES_PER_PACKET, MOST_LEDGER_PACKETS
from sojourn.sketches.ledgers.power_sums import threshold_for
from sojourn.sketches.ledgers.receipt import (
    MOST_FLOWS,
    MOST_GROUPS,
    MOST_SUMS,
    WIDEST_SUM_BITS,
    ReceiptParameters,
)

LOSSES = 40
LEAST_RUN, MOST_RUN = 1 << 10, 1 << 14
LEAST_LOSS, MOST_LOSS = 1e-4, 0.35
ROOM = 4
ROWS_PER_FLOW, LEAST_ROWS = 2, 64
REPEATED, LEAST_REPEATS, MOST_REPEATS = 0.01, 64, 1 << 16
MOST_REMEMBERED = 1 << 20
MOST_DELAY_NS = 10_000_000_000
# Above, and with fewer packets a flow, auto's sketches say more for the bits (`reproduce bits`).
ENOUGH_LOST, FEW_PACKETS = 0.1, 10
# Beside receipts: a sampled packet in so many takes a third of a bit for each.
PACKETS_PER_SAMPLE, SLOT_BYTES, LEAST_BESIDE = 256, 11, 4 << 10
# Measured on one core: a packet is recorded by its receipt and its ledger, and for each of its group's sums.
RECORDED_NS, NS_PER_SUM = 75.0, 0.14
# The same of decoding: sorting packets by their groups, trying them, and the sums of a group by Newton's identities.
SORTED_NS, NS_PER_ROOT, NS_PER_SQUARE = 45.0, 0.2, 2.5
# Bits of a flow's row in a compressed epoch, beside its sum: its tag's distance, and its packets.
ROW_BITS = 38
HEADER_BITS = 8 * 220
DAY_NS = 86_400_000_000_000


def fit_receipt(packets: int, *, flows: int, loss: float, salt: int = 0) -> ReceiptParameters:
    """The receipts of epochs with so many packets and flows, of which such a share of packets is lost.

    >>> fit_receipt(100_000, flows=1000, loss=0.01).threshold
    74
    """
    if not 0 <= loss < 1 or packets < 1 or flows < 1:
        raise ParameterError(
            f"{packets} packets of {flows} flows at a loss of {loss:g}",
            where="ledger",
            action="give at least one packet, one flow, and a share of losses below 1",
        )
    planned = min(max(loss, LEAST_LOSS), MOST_LOSS)
    run = min(MOST_RUN, max(LEAST_RUN, 1 << round(math.log2(LOSSES / planned))))
    threshold = threshold_for(run * planned / (1 - planned))
    groups = 1 << max(0, -(-ROOM * packets // run) - 1).bit_length()
    while groups > MOST_GROUPS or groups * threshold > MOST_SUMS:
        groups //= 2
    return ReceiptParameters(
        groups=groups,
        threshold=threshold,
        run=run,
        loss_ppm=round(planned * 1e6),
        flows=min(MOST_FLOWS, max(LEAST_ROWS, ROWS_PER_FLOW * flows)),
        repeats=min(MOST_REPEATS, max(LEAST_REPEATS, round(REPEATED * packets))),
        remembered=min(MOST_REMEMBERED, packets),
        # Delays of up to `MOST_DELAY_NS`, if one flow has all packets.
        sum_bits=min(WIDEST_SUM_BITS, (ROOM * packets * MOST_DELAY_NS).bit_length() + 1),
        salt=salt,
    )


def beside_bytes(packets: int) -> int:
    """What the sample and the LDA take beside a receipt of so many packets, where nobody says otherwise."""
    return max(LEAST_BESIDE, packets // PACKETS_PER_SAMPLE * SLOT_BYTES)


# How quantities of a plan are shown.
LEDGER_SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "epoch_bytes": ("an epoch", format_bytes),
    "sums_bits": ("bits per packet: power sums", "{:.3g}".format),
    "rows_bits": ("… rows of flows", "{:.3g}".format),
    "beside_bits": ("… sample, LDA and header", "{:.3g}".format),
    "ledger_packets": ("packets in the ledger", "{:,}".format),
    "recording_core": ("a core's share: recording", "{:.1%}".format),
    "decoding_core": ("… decoding", "{:.1%}".format),
}


@dataclass(frozen=True)
class LedgerCosts:
    """What a point comes to: in an epoch of ``packets``, in bits for each packet and in nanoseconds of one core."""

    parameters: ReceiptParameters
    packets: int
    ledger_packets: int
    sums_bits: float
    flows_bits: float
    beside_bits: float
    record_ns: float
    decode_ns: float

    @property
    def bits_per_packet(self) -> float:
        """All that is sent, by either side."""
        return self.sums_bits + self.flows_bits + self.beside_bits

    @property
    def ledger_bytes(self) -> int:
        """Memory of the ledger."""
        return BYTES_PER_PACKET * self.ledger_packets

    @property
    def epoch_bytes(self) -> int:
        """What a point sends of an epoch."""
        return math.ceil(self.bits_per_packet * self.packets / 8)

    def planned(self, epoch_ns: int) -> dict[str, object]:
        """What is sent and kept."""
        return {
            "epoch_bytes": self.epoch_bytes,
            "bits_per_packet": self.bits_per_packet,
            "bytes_per_day": self.epoch_bytes * DAY_NS / epoch_ns,
            "memory_bytes": self.ledger_bytes + -(-self.parameters.memory_bits // 8),
            "parameters": {"receipt": self.parameters.to_mapping()},
        }

    def expected(self, rate: float) -> dict[str, object]:
        """What a plan says of it; the shares of a core at so many packets a second."""
        return {
            "sums_bits": self.sums_bits,
            "rows_bits": self.flows_bits,
            "beside_bits": self.beside_bits,
            "ledger_packets": self.ledger_packets,
            "recording_core": rate * self.record_ns / 1e9,
            "decoding_core": rate * self.decode_ns / 1e9,
        }

    def advice(self, flows: int, loss: float) -> str:
        """What to use instead where a ledger takes more bits than it is worth."""
        if loss > ENOUGH_LOST:
            return (
                f"names of lost packets take {self.sums_bits:.1f} bits a packet at this loss; see `sojourn plan auto`"
            )
        if self.packets < FEW_PACKETS * flows:
            each = self.packets / flows
            return (
                f"rows of flows with {each:.1f} packets take {self.flows_bits:.1f} bits each; see `sojourn plan auto`"
            )
        return ""


def ledger_costs(parameters: ReceiptParameters, packets: int, flows: int, *, held: float) -> LedgerCosts:
    """Costs of epochs with so many packets and flows; the ledger holds `held` of them."""
    groups, sums = parameters.needed(packets)
    each = packets / groups
    losses = each * parameters.loss_ppm / 1e6
    row = ROW_BITS + min(parameters.sum_bits, 64)
    ledger = min(MOST_LEDGER_PACKETS, max(1, round(held * packets)))
    return LedgerCosts(
        parameters=parameters,
        packets=packets,
        ledger_packets=ledger,
        sums_bits=32 * groups * sums / packets,
        flows_bits=row * flows / packets,
        beside_bits=(8 * beside_bytes(packets) + HEADER_BITS) / packets,
        record_ns=RECORDED_NS + NS_PER_SUM * parameters.threshold,
        decode_ns=SORTED_NS + NS_PER_ROOT * losses + NS_PER_SQUARE * sums * sums / each,
    )
