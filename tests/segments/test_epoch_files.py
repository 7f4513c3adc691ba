"""Files of epochs: all that `record` wrote, each once."""

from __future__ import annotations

from pathlib import Path

import strategies as own
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.segments.measure import read_epoch_file
from sojourn.sketches.lda import Lda, LdaParameters


def epoch(sequence: int, time_ns: int) -> Epoch:
    sketch = Lda(LdaParameters(rows=4))
    sketch.record_batch(own.packet_batch([(0, i, time_ns + i, 0) for i in range(3)]))
    return Epoch("n", "segment", sequence, sketch, ())


def test_a_copy_counts_once_and_recordings_put_together_count_both(tmp_path: Path) -> None:
    morning, evening = [epoch(0, 100), epoch(1, 200)], [epoch(0, 10_000), epoch(1, 20_000)]
    path = tmp_path / "day.epochs"
    path.write_bytes(b"".join(map(encode, [*morning, *evening, *morning])))
    assert read_epoch_file(path) == [*morning, *evening]
