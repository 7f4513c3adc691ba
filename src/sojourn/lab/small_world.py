"""A small world on disk: two captures, a sink's trace and a topology, enough for every command to have work to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import Int64Array, UInt8Array

FLOWS, PACKETS_EACH, LOSS = 60, 40, 0.02
ANSWERED = 4  # every so many packets that arrive
START_NS, GAP_NS, DELAY_NS, REPLY_NS = 1_700_000_000_000_000_000, 50_000, 3_000_000, 10_000
FURTHER_NS = 90_000_000
# pcap with nanoseconds, little endian, version 2.4, Ethernet.
_HEADER = bytes.fromhex("4d3cb2a1 02000400 00000000 00000000 00000400 01000000")
# Ethernet, IPv4 (66 bytes: 20 + TCP 32 + 14 of data), TCP with a time stamp option.
_FRAME = bytes.fromhex(
    "020000000002 020000000001 0800"
    "4500 0042 0000 4000 4006 0000 0a000001 0a000002"
    "0000 01bb 00000000 00000001 8010 ffff 0000 0000"
    "0101 080a 00000000 00000001"
) + bytes(14)


def write_small_world(folder: Path) -> None:
    """Write in.pcap, out.pcap, trace.csv, ring.csv and ring-traffic.csv into `folder`; always the same.

    So is early.pcap: what was sent at a point so far away that most packets are on their way at once, and written a
    little out of order.
    """
    random = np.random.default_rng(7)
    flow = random.permutation(np.repeat(np.arange(FLOWS), PACKETS_EACH))
    sent_ns = START_NS + GAP_NS * np.arange(len(flow))
    arrives = random.random(len(flow)) >= LOSS
    delay_ns = DELAY_NS + 20_000 * flow + random.exponential(200_000, len(flow)).astype(np.int64)
    received_ns = sent_ns + delay_ns
    frames = _frames(flow)
    back = np.flatnonzero(arrives)[::ANSWERED]
    answers = _answers(frames[back])
    answered_ns = received_ns[back] + REPLY_NS
    _write_pcap(folder / "in.pcap", [frames, answers], [sent_ns, answered_ns + DELAY_NS])
    _write_pcap(folder / "out.pcap", [frames[arrives], answers], [received_ns[arrives], answered_ns])
    _write_pcap(folder / "early.pcap", [_swapped(frames)], [_swapped(sent_ns) - FURTHER_NS], in_order=False)
    rows = [
        f"{origin},{k},{origin}-1-0,{k + origin / 10},{k + origin / 10 + 0.02},0.004"
        for k in range(20)
        for origin in (2, 3)
    ]
    (folder / "trace.csv").write_text("\n".join(["origin,seq,path,t0_s,t_sink_s,sum_of_delays_s", *rows]) + "\n")
    links = [f"r{i},r{(i + step) % 8},1" for i in range(8) for step in (1, 7)]
    (folder / "ring.csv").write_text("\n".join(["source,target,weight", *links]) + "\n")
    (folder / "ring-traffic.csv").write_text("from,to,weight\nr0,r3,2\nr5,r1,1\n")


def _frames(flow: Int64Array) -> UInt8Array:
    """A frame for each packet: the flow is its port, its IP identification and sequence number distinguish packets."""
    frames = np.tile(np.frombuffer(_FRAME, np.uint8), (len(flow), 1))
    number = np.arange(len(flow))
    for offset, values in ((18, number), (34, 20_000 + flow), (40, number), (60, number)):
        frames[:, offset], frames[:, offset + 1] = values >> 8 & 255, values & 255
    return frames


def _answers(frames: UInt8Array) -> UInt8Array:
    """What the other end sends back: addresses and ports change places, and the time stamp is echoed."""
    answers = frames.copy()
    for first, second, size in ((26, 30, 4), (34, 36, 2), (58, 62, 4)):
        answers[:, first : first + size] = frames[:, second : second + size]
        answers[:, second : second + size] = frames[:, first : first + size]
    return answers


def _swapped(column: NDArray[Any]) -> NDArray[Any]:
    """The first two of every ten rows in each other's place."""
    swapped = column.copy()
    swapped[::10], swapped[1::10] = column[1::10], column[::10]
    return swapped


def _write_pcap(path: Path, parts: list[UInt8Array], times_ns: list[Int64Array], *, in_order: bool = True) -> None:
    frames, time_ns = np.concatenate(parts), np.concatenate(times_ns)
    if in_order:
        order = np.argsort(time_ns, kind="stable")
        frames, time_ns = frames[order], time_ns[order]
    size = frames.shape[1]
    head = np.empty((len(frames), 4), "<u4")
    head[:, 0], head[:, 1], head[:, 2:] = time_ns // 10**9, time_ns % 10**9, size
    records = np.concatenate([head.view(np.uint8).reshape(len(frames), 16), frames], axis=1)
    path.write_bytes(_HEADER + records.tobytes())
