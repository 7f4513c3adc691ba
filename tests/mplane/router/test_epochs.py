"""A router's epochs become measurements; what cannot be compared is void and says why."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import can_merge
from sojourn.epochs.wire import decode, encode
from sojourn.lab.traffic import make_traffic
from sojourn.mplane.measurements import Segment
from sojourn.mplane.router.epochs import RouterStream, Side, Void, segment_measurements, void_epoch
from sojourn.sketches.lda import Lda, LdaParameters

SECOND = 1_000_000_000
PARAMETERS = LdaParameters(rows=256, shares=(1.0, 0.1), salt=7)
INGRESS = RouterStream("a", "b", 46, SECOND, Side.INGRESS)
EGRESS = RouterStream("a", "b", 46, SECOND, Side.EGRESS)
NAMES = st.text(st.characters(exclude_characters=":>/", exclude_categories=["C", "Z"]), min_size=1, max_size=20)


def epoch_of(
    stream: RouterStream, batch: PacketBatch, interval: int = 5, parameters: LdaParameters = PARAMETERS
) -> Epoch:
    sketch = Lda(parameters)
    assert sketch.record_batch(batch) == len(batch)
    return Epoch("r", stream.name, interval, sketch)


@given(
    NAMES,
    NAMES,
    st.integers(0, 63),
    st.integers(1, 10**8),
    st.one_of(st.sampled_from(Side), st.sampled_from(Void)),
)
def test_a_streams_name_says_all_its_parts(ingress: str, egress: str, dscp: int, length: int, end: Side | Void) -> None:
    side, void = (end, None) if isinstance(end, Side) else (None, end)
    stream = RouterStream(ingress, egress, dscp, length * 1_000_000, side, void)
    assert RouterStream.parse(stream.name) == stream


@pytest.mark.parametrize(
    "name",
    [
        "disk",
        "router:a>b:dscp64:1000ms:ingress",
        "router:a>b:dscp0:0ms:ingress",
        "router:a>b:dscp0:1000ms:void because",
        "router:a:b>c:dscp0:1000ms:ingress",
        "router:a>b:dscp0:1000ms:ingress\n",
    ],
)
def test_other_streams_are_left_alone(name: str) -> None:
    assert RouterStream.parse(name) is None
    if name.isprintable():
        assert segment_measurements([Epoch("r", name, 5, Lda(PARAMETERS))]) == []


@pytest.mark.parametrize("name", ["", "a>b", "a:b", "a/b", " a"])
def test_names_that_could_not_be_read_back_are_refused(name: str) -> None:
    with pytest.raises(ParameterError):
        RouterStream(name, "b", 0, SECOND, Side.INGRESS)


@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_two_sides_give_mean_deviation_and_exact_loss(loss: float) -> None:
    traffic = make_traffic(seed=3, flows=800, delays="weibull", loss=loss, duration_ns=SECOND)
    epochs = [epoch_of(INGRESS, traffic.sender), epoch_of(EGRESS, traffic.receiver)]
    (found,) = segment_measurements(decode(encode(epoch)) for epoch in reversed(epochs))
    delays = traffic.delay_ns[traffic.delivered]
    assert found.segment == Segment.inside("a", "r", "b")
    assert (found.dscp, found.interval, found.start_ns, found.end_ns) == (46, 5, 5 * SECOND, 6 * SECOND)
    assert (found.packets, found.lost) == (len(traffic.sender), int((~traffic.delivered).sum()))
    assert found.void is None
    assert found.mean_ns is not None
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.std_ns is not None
    width = 3 * (found.high_ns - found.low_ns) + 1  # 3 × 95 %: beyond it in 1 of 10⁸ worlds
    assert abs(found.mean_ns - delays.mean()) <= width
    assert found.std_ns == pytest.approx(delays.std(), rel=0.5)


def test_what_is_missing_or_void_says_why() -> None:
    traffic = make_traffic(seed=4, flows=50, duration_ns=SECOND)
    ingress, egress = epoch_of(INGRESS, traffic.sender), epoch_of(EGRESS, traffic.receiver)
    fewer = epoch_of(INGRESS, traffic.sender.select(slice(0, 10)))
    other = epoch_of(EGRESS, traffic.receiver, parameters=LdaParameters(rows=16))
    start_lost = void_epoch("r", EGRESS.voided(Void.START_LOST), 5)
    cases = {
        Void.EGRESS_MISSING: [ingress],
        Void.INGRESS_MISSING: [egress],
        Void.OTHER_PACKETS: [fewer, egress],
        Void.OTHER_PARAMETERS: [ingress, other],
        Void.START_LOST: [ingress, decode(encode(start_lost))],
    }
    for void, epochs in cases.items():
        (found,) = segment_measurements(epochs)
        assert found.void == str(void)
        assert (found.lost, found.mean_ns, found.std_ns) == (0, None, None)


def test_void_epochs_of_a_stream_are_never_merged() -> None:
    stream = EGRESS.voided(Void.END_LOST)
    assert not can_merge(void_epoch("r", stream, 5), void_epoch("r", stream, 6))
    assert void_epoch("r", stream, 5).first_ns == 5 * SECOND


def test_segments_classes_and_intervals_are_kept_apart_in_time_order() -> None:
    traffic = make_traffic(seed=5, flows=20, duration_ns=SECOND)
    epochs = []
    for interval in (8, 6):
        for dscp in (46, 0):
            for side, batch in ((Side.INGRESS, traffic.sender), (Side.EGRESS, traffic.receiver)):
                epochs.append(epoch_of(RouterStream("a", "b", dscp, SECOND, side), batch, interval))
    found = segment_measurements(epochs)
    assert [(m.interval, m.dscp) for m in found] == [(6, 0), (6, 46), (8, 0), (8, 46)]
    assert all(m.void is None for m in found)


def test_an_interval_in_which_everything_was_lost_has_no_mean() -> None:
    traffic = make_traffic(seed=6, flows=20, duration_ns=SECOND)
    nothing = traffic.receiver.select(np.zeros(len(traffic.receiver), np.bool_))
    (found,) = segment_measurements([epoch_of(INGRESS, traffic.sender), epoch_of(EGRESS, nothing)])
    assert (found.void, found.mean_ns) == (None, None)
    assert found.lost == found.packets == len(traffic.sender)
