"""Captures of two points, for where no interface may be read: generated traffic, as bytes in files.

::

    paris ── out ──▶ a queue and a link ──▶ in ── berlin
          ◀── in ─────────── 3 ms ─────────── out ◀──

What is sent from paris passes a queue (`lab.traffic`): it is a tenth of what the link carries at first, and four fifths
from `SLOW_NS` on, when the link has become slower. Every fourth packet that arrives is answered. Each file has what one
point sees in one direction: ``paris-out.pcap`` what leaves paris, and so on.

Guarantee: always the same files; delays and losses are those of the queue, and the answers' are 3 ms and none.
Cost: a second, and 25 MB on the disk for ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.lab.frames import answers, frames, write_pcap
from sojourn.lab.traffic import START_NS, Traffic, make_queue_traffic

SENDER, RECEIVER, INTERFACE = "paris", "berlin", "eth0"
SECOND_NS = 1_000_000_000
SLOW_NS, LENGTH_NS = 25 * SECOND_NS, 600 * SECOND_NS
PACKETS_PER_SECOND = 200
FAST_LOAD, SLOW_LOAD = 0.1, 0.8  # of what the link carries
FLOWS, BUFFER_PACKETS = 40, 64
ANSWERED, BACK_NS = 4, 3_000_000
SEED = 17


@dataclass(frozen=True)
class Recording:
    """Where the files are, and the true mean delay while the link is fast, and when it is slow."""

    folder: Path
    fast_ns: float
    slow_ns: float


def write_recording(folder: Path) -> Recording:
    """Write the four captures into a new folder."""
    folder.mkdir()
    fast, slow = _part(SEED, SLOW_NS, FAST_LOAD), _part(SEED + 1, LENGTH_NS - SLOW_NS, SLOW_LOAD)
    flow = np.concatenate([fast.flow, slow.flow])
    sent_ns = np.concatenate([fast.sender.time_ns, slow.sender.time_ns + SLOW_NS])
    delay_ns = np.concatenate([fast.delay_ns, slow.delay_ns])
    arrives = np.concatenate([fast.delivered, slow.delivered])
    _write(folder, flow, sent_ns, np.where(arrives, sent_ns + delay_ns, -1))
    return Recording(folder, fast.truth.mean_of_all_ns, slow.truth.mean_of_all_ns)


def _part(seed: int, length_ns: int, load: float) -> Traffic:
    """Traffic through the queue for some time."""
    packets = PACKETS_PER_SECOND * length_ns // SECOND_NS
    buffer = BUFFER_PACKETS
    return make_queue_traffic(
        seed=seed, flows=FLOWS, packets=packets, load=load, buffer_packets=buffer, duration_ns=length_ns
    )


def _write(folder: Path, flow: Int64Array, sent_ns: Int64Array, received_ns: Int64Array) -> None:
    """The four files; what was received at -1 was not."""
    sent = frames(flow)
    there = np.flatnonzero(received_ns >= 0)
    answered = there[::ANSWERED]
    back, back_ns = answers(sent[answered]), received_ns[answered]
    write_pcap(capture_of(folder, SENDER, "out"), [sent], [sent_ns])
    write_pcap(capture_of(folder, RECEIVER, "in"), [sent[there]], [received_ns[there]])
    write_pcap(capture_of(folder, RECEIVER, "out"), [back], [back_ns])
    write_pcap(capture_of(folder, SENDER, "in"), [back], [back_ns + BACK_NS])


def capture_of(folder: Path, node: str, direction: str) -> Path:
    """The file of what a node sees in one direction."""
    return folder / f"{node}-{direction}.pcap"


def begin_of(folder: Path) -> Path:
    """The file that says when the recording is to have begun, once it is to begin."""
    return folder / "begin"


def shift_ns(begin_ns: int) -> int:
    """What is added to the recording's times, if it is to have begun then."""
    return begin_ns - START_NS
