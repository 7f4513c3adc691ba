"""Loss and delay by DSCP: a packet counts in the class that it was sent in, whatever routers make of it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import sojourn
from odd_captures import START_NS, Packet, write
from sojourn.core.errors import UsageError
from sojourn.matching.groups import SenderClasses

MS = 1_000_000
CLASSES = (0, 46, 26)
LOSS = {0: 0.2, 46: 0.0, 26: 0.5}
DELAY_NS = {0: 20 * MS, 46: 2 * MS, 26: 9 * MS}


@dataclass(frozen=True)
class Marked(Packet):
    """A packet with a DSCP."""

    dscp: int = 0

    def frame(self) -> bytes:
        whole = bytearray(super().frame())
        whole[15] = self.dscp << 2 | 1  # and ECN's bits, which are no part of it
        return bytes(whole)


def world(
    packets: int = 6000,
) -> tuple[list[Marked], list[Marked], dict[int, Counter[str]], dict[int, list[int]]]:
    """Flows 0 … 3 of one class, 4 and 5 of all: at the receiver, where everything is marked 8, out of order."""
    draw = random.Random(5)
    sender, receiver = [], []
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    delays: dict[int, list[int]] = defaultdict(list)
    for serial in range(packets):
        flow = draw.randrange(6)
        dscp = CLASSES[flow % 3] if flow < 4 else draw.choice(CLASSES)
        time_ns = START_NS + serial * MS // 4
        sender.append(Marked(time_ns, flow, serial, dscp=dscp))
        # Not at the edges: whether a packet there is lost cannot be judged.
        is_lost = 200 < serial < packets - 200 and draw.random() < LOSS[dscp]
        counts[dscp]["sent"] += 1
        counts[dscp]["lost"] += is_lost
        if not is_lost:
            delay_ns = DELAY_NS[dscp] + draw.randrange(MS)
            delays[dscp].append(delay_ns // 1000 * 1000)
            receiver.append(Marked(time_ns + delays[dscp][-1], flow, serial, dscp=8))
    receiver.sort(key=lambda packet: packet.time_ns)
    return sender, receiver, counts, delays


@pytest.mark.parametrize("disorder_ns", [1, 30 * MS])
def test_classes_are_the_senders_to_the_packet(tmp_path: Path, disorder_ns: int) -> None:
    sender, receiver, counts, delays = world()
    draw = random.Random(2)  # a capture of several queues is out of order
    sent = write(tmp_path / "in.pcap", sender, order=lambda packet: packet.time_ns + draw.randrange(disorder_ns))
    paths = sent, write(tmp_path / "out.pcap", receiver)
    result = sojourn.measure(*paths, by="dscp", clock="none")
    found = {part["dscp"]: part for part in result.classes}
    assert set(found) == set(CLASSES)
    for dscp, part in found.items():
        assert (part["sent"], part["lost"]) == (counts[dscp]["sent"], counts[dscp]["lost"])
        assert part["mean_ns"] == pytest.approx(np.mean(delays[dscp]), abs=1)
        assert part["p99_ns"] == pytest.approx(np.percentile(delays[dscp], 99), rel=0.01)
    assert [part["name"] for part in result.classes] == ["CS0", "AF31", "EF"]
    columns = result.columns()
    flows = dict(zip(columns["src_port"], columns["dscp"], strict=True))
    assert flows == {4000: 0, 4001: 46, 4002: 26, 4003: 0, 4004: None, 4005: None}
    assert "DSCP 46 (EF): " in result.summary
    assert result.fields()["classes"] == [dict(part) for part in result.classes]


def test_the_answer_is_the_same_beside_classes_and_without_them(tmp_path: Path) -> None:
    sender, receiver, _, _ = world(1500)
    paths = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", receiver)
    plain, classed = sojourn.measure(*paths), sojourn.measure(*paths, by="dscp")
    assert plain.aggregate == classed.aggregate
    assert {name: column for name, column in classed.columns().items() if name != "dscp"} == plain.columns()
    assert not plain.classes


def test_sketches_know_no_classes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="classes are exact matching's"):
        sojourn.measure(tmp_path / "a", tmp_path / "b", by="dscp", sketch="auto")


def test_classes_of_packets_on_their_way_are_kept_and_others_forgotten() -> None:
    kept = SenderClasses()
    rng = np.random.default_rng(1)
    classes = rng.integers(0, 64, 1_000_000).astype(np.uint8)
    for first in range(0, len(classes), 10_000):
        last = first + 10_000
        kept.forget(first - 300_000)
        kept.add(classes[first:last], last - 1)
        asked = rng.integers(max(0, first - 299_000), last, 1000)
        assert np.array_equal(kept.of(asked), classes[asked])
    assert len(kept._ring) == 1 << 19  # what 300,000 packets and a batch need
