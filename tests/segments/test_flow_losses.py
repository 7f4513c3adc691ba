"""What a flow's `lost` is worth, by where it comes from, as docs/commands/measure.md has it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import sojourn
from odd_captures import START_NS, Packet, write

FLOWS, PACKETS, LOSS, MEMORY = 300, 9_000, 0.02, "8KB"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Flows of Zipf's sizes that lose two packets of a hundred, too many for the cells."""
    draw, folder = random.Random(5), tmp_path_factory.mktemp("losses")
    owners = draw.choices(range(FLOWS), [(k + 1) ** -0.9 for k in range(FLOWS)], k=PACKETS)
    sent = [Packet(START_NS + i * 100_000, flow, i, payload=32) for i, flow in enumerate(owners)]
    received = [replace(p, time_ns=p.time_ns + 5_000_000) for p in sent if draw.random() >= LOSS]
    return write(folder / "a.pcap", sent), write(folder / "b.pcap", received)


@pytest.fixture(scope="module")
def truth(captures: tuple[str, str]) -> dict[int, int]:
    rows = sojourn.measure(*captures, sketch="exact")
    return {row["src_port"]: row["lost"] for row in rows}


def errors(result: sojourn.SegmentResult, truth: dict[int, int]) -> np.ndarray:
    """How many packets each loss is off; NaN where it is not known."""
    rows = [(row["lost"], truth[row["src_port"]]) for row in result]
    return np.array([np.nan if lost is None else lost - true for lost, true in rows])


def estimated(captures: tuple[str, str], sketch: str, method: str) -> sojourn.SegmentResult:
    known = {"sketch": sketch, "method": method, "memory": MEMORY, "flows": FLOWS, "loss": LOSS}
    return sojourn.estimate(*(sojourn.record(path, **known) for path in captures), method=method)


@pytest.mark.parametrize("sketch", ["lds", "colate", "auto"])
def test_decoded_jointly_it_is_an_estimate(captures: tuple[str, str], truth: dict[int, int], sketch: str) -> None:
    off = errors(sojourn.measure(*captures, sketch=sketch, memory=MEMORY), truth)
    assert off.min() < 0 < off.max()
    assert np.abs(off).mean() < 1


def test_a_literal_lds_is_never_too_low(captures: tuple[str, str], truth: dict[int, int]) -> None:
    measured = sojourn.measure(*captures, sketch="lds", method="literal", memory=MEMORY)
    for result in (measured, estimated(captures, "lds", "literal")):
        off = errors(result, truth)
        assert off.min() == 0
        assert off.max() > 0


def test_beside_a_sample_a_literal_lds_bounds_what_is_estimated(
    captures: tuple[str, str], truth: dict[int, int]
) -> None:
    """Some 80 intervals of 95 %: fewer than 85 % hold the truth in one of 1,000 runs."""
    rows = list(estimated(captures, "auto", "literal"))
    held = [row["lost_low"] <= truth[row["src_port"]] <= row["lost_high"] for row in rows]
    assert len(held) >= 60
    assert np.mean(held) >= 0.85


def test_a_literal_colate_knows_what_was_counted(captures: tuple[str, str], truth: dict[int, int]) -> None:
    measured = sojourn.measure(*captures, sketch="colate", method="literal", memory=MEMORY)
    assert not errors(measured, truth).any()
    assert np.isnan(errors(estimated(captures, "colate", "literal"), truth)).all()


def test_samples_estimate_it(captures: tuple[str, str], truth: dict[int, int]) -> None:
    off = errors(sojourn.measure(*captures, sketch="sample", memory=MEMORY), truth)
    assert off.min() < 0 < off.max()
    off = errors(estimated(captures, "sample", "joint"), truth)
    assert off.min() < 0 < off.max()
    assert off.sum() == 0


@pytest.mark.parametrize("sketch", ["lds", "colate", "sample", "auto", "lda"])
def test_the_total_is_exact(captures: tuple[str, str], truth: dict[int, int], sketch: str) -> None:
    aggregate = sojourn.measure(*captures, sketch=sketch, memory=MEMORY).aggregate
    assert aggregate["lost"] == sum(truth.values())
    assert "lost_low" not in aggregate
