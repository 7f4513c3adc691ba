"""What exact matching takes does not grow with the capture: the same flows for 1, 4 and 16 times as long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.capture_files import lengthen_pair
from bench.timing import SOJOURN, best_run

import sojourn
from sojourn.capture.files.reader import open_capture

MOST_KIB = 350 * 1024
LENGTHS = (12, 48, 192)
GROWTH = 1.15


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("new_addresses", [True, False])
def test_a_lengthened_pair_is_the_pair_again_and_again(tmp_path: Path, new_addresses: bool) -> None:
    copies = 3
    pair = lengthen_pair(tmp_path, copies, new_addresses=new_addresses)
    once = lengthen_pair(tmp_path, 1)
    assert once.sender.stat().st_size < pair.sender.stat().st_size / 2.9
    ids, flows = _ids_and_flows(pair.sender)
    ids_once, flows_once = _ids_and_flows(once.sender)
    assert len(ids) == copies * len(ids_once)
    assert flows == (copies * flows_once if new_addresses else flows_once)
    assert len(np.unique(ids)) == copies * len(np.unique(ids_once))  # no packet is taken for its copy
    one, all_of_them = sojourn.measure(*once.both), sojourn.measure(*pair.both)
    # Where a copy ends and the next begins packets are missed at one point that at the ends of captures do not count.
    assert all_of_them.aggregate["sent"] == pytest.approx(copies * one.aggregate["sent"], rel=0.005)
    assert all_of_them.aggregate["mean_ns"] == pytest.approx(one.aggregate["mean_ns"], rel=0.005)


def _ids_and_flows(path: Path) -> tuple[np.ndarray, int]:
    with open_capture(path) as reader:
        batches = list(reader)
    flows = np.concatenate([batch.flow_id for batch in batches])
    return np.concatenate([batch.packet_id for batch in batches]), len(np.unique(flows))


@pytest.mark.long
@pytest.mark.usefixtures("shared_data")
def test_exact_matching_takes_the_same_memory_whatever_the_length(tmp_path: Path) -> None:
    peaks = []
    for copies in LENGTHS:
        pair = lengthen_pair(tmp_path, copies, new_addresses=False)
        peaks.append(best_run([*SOJOURN, "measure", *pair.both], 2, cores=2).peak_kib)
        for path in (pair.sender, pair.receiver):
            path.unlink()
    assert max(peaks) < MOST_KIB, peaks
    assert max(peaks) < GROWTH * min(peaks), peaks
