"""Questions about segments: two nodes' epochs sent over HTTP, answered as they come, asked for by the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cbor2
import httpx
import numpy as np
import pytest
from query_unit import Unit
from tests.segments.fleet.fleet_world import SECOND, PolledPoint, moved, record, truth_between, watched
from tests.segments.fleet.test_answers import in_order
from tests.segments.fleet.test_steady import SetClock, recorded

from sojourn.client.query_unit import Client
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import ServerError
from sojourn.core.hashing import hash_bytes
from sojourn.core.keys import FlowKey, key_id, parse_key
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import merged_epoch
from sojourn.epochs.wire import encode
from sojourn.lab.two_point import LOST, START_NS, TwoPointWorld, make_two_point_world
from sojourn.segments.fleet.clocks import WAS_SET, ClockAt
from sojourn.segments.fleet.watch import LOOKS, WINDOW_NS
from sojourn.segments.plan import plan_point
from sojourn.segments.result import SegmentResult
from sojourn.server.runs import questions
from sojourn.server.runs.answering import answer_pairs
from sojourn.server.runs.questions import SegmentWork, answer_segment
from sojourn.store.runs import KnownPair, Pair, RunStore
from waiting import eventually

MEMORY = 32_000
PLAN = plan_point(MEMORY, flows=100, loss=0.01)
OUT, IN = "point:eth0:out:g1", "point:eth1:in:g1"


@pytest.fixture
def admin(unit: Unit) -> Iterator[Client]:
    with Client(unit.url, unit.tokens["admin"]) as client:
        yield client


@pytest.fixture(scope="module")
def world() -> TwoPointWorld:
    made = make_two_point_world(seed=21, flows=30, packets=20_000, duration_ns=40 * SECOND, load=0.9)
    return in_order(made)


def epochs_of(world: TwoPointWorld, batch: PacketBatch, node: str, stream: str) -> list[Epoch]:
    return [replace(epoch, node=node, stream=stream) for epoch in record(batch, PLAN, world)]


def send(unit: Unit, epochs: Sequence[Epoch]) -> None:
    with unit.client(epochs[0].node) as client:
        for start in range(0, len(epochs), 5):
            body = b"".join(map(encode, epochs[start : start + 5]))
            assert client.post("/api/v1/epochs", content=body).status_code == httpx.codes.OK


def create(admin: Client, name: str = "ab", **how: object) -> None:
    admin.create_segment(name, "alpha:eth0", "beta:eth1", memory_bytes=MEMORY, epoch_ns=5 * SECOND, **how)  # type: ignore[arg-type]


def asked(admin: Client, name: str = "ab", **question: object) -> SegmentResult:
    return admin.query_segment(name, **{"from_ns": 0, "live": False, **question})  # type: ignore[arg-type]


def answered(unit: Unit, count: int = 1, *, pairs: int = 1) -> None:
    """Wait until so many runs of each of some pairs are stored."""
    runs = RunStore(unit.store)
    eventually(lambda: sum(one.runs >= count for one in runs.totals(0, 2**63 - 1).values()) >= pairs)


def span_of(result: SegmentResult) -> tuple[int, int]:
    return result.covered[0]["from_ns"], result.covered[-1]["to_ns"]


def text_of(row: Mapping[str, object]) -> str:
    return f"{row['src_ip']}:{row['src_port']} > {row['dest_ip']}:{row['dest_port']} {row['protocol']}"


def test_two_nodes_epochs_are_one_answer(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    send(unit, epochs_of(world, world.sender, "alpha", OUT))
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 3)
    result = asked(admin)
    truth, delay = truth_between(world, *span_of(result))
    assert len(result.covered) == 1
    assert (result.aggregate["sent"], result.aggregate["lost"]) == (len(delay), int((delay == LOST).sum()))
    assert result.aggregate["mean_ns"] == pytest.approx(delay[delay != LOST].mean(), rel=0.02)
    assert result.direction == {"sender": "alpha:eth0:out", "receiver": "beta:eth1:in", "other_way": 0}
    assert result.clock["uncertainty_ns"] is None
    sizes = {key_id(parse_key(text_of(row))): row for row in result}
    assert sizes.keys() == set(truth.flow_id.tolist())
    for flow, sent in zip(truth.flow_id.tolist(), truth.sent.tolist(), strict=True):
        assert sizes[flow]["packets"] == pytest.approx(sent, rel=0.02, abs=3)


def test_intervals_flows_and_the_largest(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    send(unit, epochs_of(world, world.sender, "alpha", OUT))
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 3)
    whole = asked(admin)
    series = asked(admin, interval_ns=10 * SECOND)
    assert sum(part["sent"] for part in series.intervals) == whole.aggregate["sent"]
    assert len(series.intervals) > 1
    assert {row["start_ns"] for row in series} == {part["start_ns"] for part in series.intervals}
    assert all("offset_ns" in part for part in series.intervals)
    top = asked(admin, top=3, by="p90")
    assert len(top) == 3
    first = whole[0]
    assert [row["packets"] for row in asked(admin, flows=[text_of(first)])] == [first["packets"]]
    first_ns, last_ns = span_of(whole)
    half = asked(admin, to_ns=(first_ns + last_ns) // 2)
    assert 0 < half.aggregate["sent"] < whole.aggregate["sent"]
    with pytest.raises(ServerError, match=r"no run between two common markers.*the latest one ends at"):
        asked(admin, from_ns=last_ns + 10 * SECOND)
    with pytest.raises(ServerError, match="is no flow"):
        asked(admin, flows=["mosquitto[3]"])


def test_all_packets_alone_are_answered_as_beside_flows_and_drawn_as_they_were(
    unit: Unit, admin: Client, world: TwoPointWorld
) -> None:
    create(admin)
    send(unit, epochs_of(world, world.sender, "alpha", OUT))
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 3)
    whole = asked(admin, interval_ns=10 * SECOND)
    body = {"from_ns": 0, "live": False, "interval_ns": 10 * SECOND, "totals_only": True, "delay_map": True}
    with unit.client("admin") as client:
        found = client.post("/api/v1/segments/ab/query", json=body).json()
    assert found["flows"] == []
    assert found["aggregate"] == whole.aggregate
    assert found["intervals"] == whole.intervals
    drawn = found["delay_map"]
    assert drawn["start_ns"] == [one["start_ns"] for one in found["intervals"]]
    _, delay = truth_between(world, *span_of(whole))
    arrived, counts, edges = delay[delay != LOST], np.array(drawn["packets"]).sum(axis=0), np.array(drawn["edges_ns"])
    assert counts.sum() == pytest.approx(len(arrived), rel=0.02)
    assert edges[0] >= arrived.min() * 0.99
    assert edges[-1] <= arrived.max() * 1.01
    # A sample of so many packets is off by more at any edge once in a million times (Dvoretzky, Kiefer and Wolfowitz).
    below = np.searchsorted(np.sort(arrived), edges[1:]) / len(arrived)
    most = np.sqrt(np.log(2e6) / 2 / drawn["effective"])
    assert np.abs(np.cumsum(counts) / counts.sum() - below).max() < most < 0.2


def test_without_a_key_there_is_nothing_to_rank_and_the_answer_says_so(
    unit: Unit, admin: Client, world: TwoPointWorld
) -> None:
    create(admin)
    for batch, node, stream in ((world.sender, "alpha", OUT), (world.receiver, "beta", IN)):
        send(unit, [replace(epoch, keys=None) for epoch in epochs_of(world, batch, node, stream)])
    answered(unit, 3)
    result = asked(admin, top=3, by="p99")
    assert len(result) == 0
    assert result.aggregate["sent"] > 0
    assert any("no flow is named" in note for note in result.notes)


def test_packets_both_ways_tell_a_clock_that_is_3_s_behind(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin, both_directions=True)
    back = TwoPointWorld(
        replace(world.sender, packet_id=world.sender.packet_id + np.uint64(1)),
        replace(world.receiver, packet_id=world.receiver.packet_id + np.uint64(1)),
        world.delay_ns,
        world.keys,
        world.seed,
    )
    behind = -3 * SECOND
    there, reverse = admin.segment("ab")["directions"]
    send(unit, epochs_of(world, world.sender, "alpha", there["from"]["stream"]))
    send(unit, epochs_of(world, moved(world.receiver, behind), "beta", there["to"]["stream"]))
    send(unit, epochs_of(back, moved(back.sender, behind), "beta", reverse["from"]["stream"]))
    send(unit, epochs_of(back, back.receiver, "alpha", reverse["to"]["stream"]))
    answered(unit, 3, pairs=2)
    for name, offset in (("ab", behind), ("ab:reverse", -behind)):
        result = asked(admin, name)
        clock = result.clock
        assert clock["source"] == "packets both ways"
        assert abs(clock["offset_ns"] - offset) <= clock["uncertainty_ns"] < 10_000_000
        assert clock["corrected"]
        low, high = result.aggregate["low_ns"], result.aggregate["high_ns"]
        assert low <= world.delay_ns[world.delay_ns != LOST].mean() <= high


def test_a_flow_that_never_passes_the_receiver_is_not_lost(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    stranger = parse_key("10.9.9.9:1 > 10.9.9.8:2 udp")
    assert isinstance(stranger, FlowKey)
    count = 500
    random = np.random.default_rng(3)
    extra = PacketBatch(
        np.full(count, key_id(stranger), np.uint64),
        random.integers(0, 2**64, count, dtype=np.uint64),
        START_NS + np.sort(random.integers(0, 40 * SECOND, count)),
        np.full(count, 100),
    )
    with_stranger = replace(world, keys={**world.keys, key_id(stranger): stranger})
    both = PacketBatch.concatenate([world.sender, extra])
    send(unit, epochs_of(with_stranger, both, "alpha", OUT))
    send(unit, epochs_of(with_stranger, world.receiver, "beta", IN))
    answered(unit, 3)
    result = asked(admin)
    _, delay = truth_between(world, *span_of(result))
    said = "1 flow seen at one end only: not on this segment, or wholly lost; left out, and not counted as lost"
    assert said in result.notes
    assert f"{stranger} was not seen on this segment in the range" in asked(admin, flows=[str(stranger)]).notes
    assert "10.9.9.9" not in {row["src_ip"] for row in result}
    assert result.aggregate["lost"] == pytest.approx(int((delay == LOST).sum()), abs=5)


def test_an_end_that_is_missing_for_a_while_leaves_a_gap(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    sent = epochs_of(world, world.sender, "alpha", OUT)
    received = epochs_of(world, world.receiver, "beta", IN)
    gone = len(received) // 2
    send(unit, sent)
    send(unit, [*received[:gone], *received[gone + 1 :]])
    answered(unit, 2)
    result = asked(admin)
    assert len(result.covered) == 2
    inside = np.zeros(len(world.delay_ns), bool)
    for span in result.covered:
        inside |= (world.sender.time_ns >= span["from_ns"]) & (world.sender.time_ns <= span["to_ns"])
    assert result.aggregate["sent"] == int(inside.sum())
    assert result.aggregate["lost"] == int((world.delay_ns[inside] == LOST).sum())


def test_late_epochs_of_one_end_are_answered_when_they_come(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    send(unit, epochs_of(world, world.sender, "alpha", OUT))
    with pytest.raises(ServerError, match="the receiver has sent no epoch yet"):
        asked(admin)
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 3)
    assert asked(admin).aggregate["sent"] > 0


def test_a_segment_nobody_created_and_one_without_epochs(admin: Client) -> None:
    with pytest.raises(ServerError, match="there is no segment nowhere"):
        asked(admin, "nowhere")
    create(admin)
    with pytest.raises(ServerError, match="wait for the first epochs"):
        asked(admin)
    with pytest.raises(ServerError, match="there is no segment ab:reverse"):
        asked(admin, "ab:reverse")


def test_many_segments_are_ranked(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    admin.create_segment("inside", "alpha:eth0", "alpha:eth7", memory_bytes=MEMORY)
    send(unit, epochs_of(world, world.sender, "alpha", OUT))
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 3)
    (row,) = admin.rank_segments(0, by="loss", top=10)
    result = asked(admin)
    assert (row["segment"], row["sent"], row["lost"]) == ("ab", result.aggregate["sent"], result.aggregate["lost"])
    assert row["mean_ns"] == pytest.approx(result.aggregate["mean_ns"], rel=0.01)
    assert admin.rank_segments(0, segments="x*") == []


def test_a_run_is_answered_once_however_often_the_unit_starts(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    sent, received = epochs_of(world, world.sender, "alpha", OUT), epochs_of(world, world.receiver, "beta", IN)
    for end in (sent, received):
        send(unit, end[:4])
    answered(unit, 1)
    before = RunStore(unit.store).totals(0, 2**63 - 1)
    for end in (sent, received):
        send(unit, end)  # the first ones again
    eventually(lambda: RunStore(unit.store).totals(0, 2**63 - 1) != before)
    answered(unit, 3)
    result = asked(admin)
    _, delay = truth_between(world, *span_of(result))
    assert result.aggregate["sent"] == len(delay)


def test_an_end_that_starts_late_is_answered_from_then_on(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    late = START_NS + 15 * SECOND
    send(unit, epochs_of(world, world.sender, "alpha", OUT))
    send(unit, epochs_of(world, world.receiver.select(world.receiver.time_ns >= late), "beta", IN))
    answered(unit, 1)
    result = asked(admin)
    first, last = span_of(result)
    assert first >= late - SECOND
    _, delay = truth_between(world, first, last)
    assert (result.aggregate["sent"], result.aggregate["lost"]) == (len(delay), int((delay == LOST).sum()))


def test_epochs_that_a_full_spool_merged_answer_the_same(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    sent = epochs_of(world, world.sender, "alpha", OUT)
    merged = [merged_epoch(sent[1], sent[2]), *sent[3:5], merged_epoch(merged_epoch(sent[5], sent[6]), sent[7])]
    send(unit, [sent[0], *merged, *sent[8:]])
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 2)
    result = asked(admin)
    assert len(result.covered) == 1
    _, delay = truth_between(world, *span_of(result))
    assert (result.aggregate["sent"], result.aggregate["lost"]) == (len(delay), int((delay == LOST).sum()))


def test_a_segment_whose_ends_are_swapped_is_told(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    """What is called the receiver sees every packet first, both ways."""
    create(admin, both_directions=True)
    back = replace(
        world,
        sender=replace(world.sender, packet_id=world.sender.packet_id + np.uint64(1)),
        receiver=replace(world.receiver, packet_id=world.receiver.packet_id + np.uint64(1)),
    )
    there, reverse = admin.segment("ab")["directions"]
    send(unit, epochs_of(world, world.receiver, "alpha", there["from"]["stream"]))
    send(unit, epochs_of(world, world.sender, "beta", there["to"]["stream"]))
    send(unit, epochs_of(back, back.receiver, "beta", reverse["from"]["stream"]))
    send(unit, epochs_of(back, back.sender, "alpha", reverse["to"]["stream"]))
    answered(unit, 3, pairs=2)
    with pytest.raises(ServerError, match="beta:eth1:in before alpha:eth0:out; create it with --from and --to swapped"):
        asked(admin)


def test_a_segment_the_wrong_way_round_spoils_no_other_between_the_same_nodes(
    unit: Unit, admin: Client, world: TwoPointWorld
) -> None:
    """Its packets arrive before they leave, and would tell the clocks of all other segments so."""
    create(admin, both_directions=True)
    admin.create_segment(
        "wrong", "beta:eth1:in", "alpha:eth0:out", memory_bytes=MEMORY, epoch_ns=5 * SECOND, filter="udp or tcp"
    )
    sender, receiver = (replace(one, packet_id=one.packet_id + np.uint64(1)) for one in (world.sender, world.receiver))
    back = replace(world, sender=sender, receiver=receiver)
    there, reverse = admin.segment("ab")["directions"]
    wrong = admin.segment("wrong")["directions"][0]
    send(unit, epochs_of(world, world.sender, "alpha", there["from"]["stream"]))
    send(unit, epochs_of(world, world.receiver, "beta", there["to"]["stream"]))
    send(unit, epochs_of(back, back.sender, "beta", reverse["from"]["stream"]))
    send(unit, epochs_of(back, back.receiver, "alpha", reverse["to"]["stream"]))
    send(unit, epochs_of(world, world.receiver, "beta", wrong["from"]["stream"]))
    send(unit, epochs_of(world, world.sender, "alpha", wrong["to"]["stream"]))
    answered(unit, 3, pairs=3)
    result = asked(admin)
    _, delay = truth_between(world, *span_of(result))
    assert not result.warnings
    assert result.clock["uncertainty_ns"] is not None
    assert result.aggregate["low_ns"] <= delay[delay != LOST].mean() <= result.aggregate["high_ns"]
    means = {row["segment"]: row["mean_ns"] for row in admin.rank_segments(0)}
    assert means["ab"] == pytest.approx(result.aggregate["mean_ns"], rel=0.01)
    assert means["ab:reverse"] > 0


def test_a_segment_the_wrong_way_round_does_not_make_the_only_right_one_seem_wrong(unit: Unit, admin: Client) -> None:
    """Delays vary: either contradicts the other. The one that leads out of a node and into the other is right."""
    world = make_two_point_world(seed=5, flows=30, packets=20_000, duration_ns=40 * SECOND, load=0.95)
    create(admin)
    admin.create_segment(
        "wrong", "beta:eth1:in", "alpha:eth0:out", memory_bytes=MEMORY, epoch_ns=5 * SECOND, filter="udp or tcp"
    )
    wrong = admin.segment("wrong")["directions"][0]
    send(unit, epochs_of(world, world.sender, "alpha", OUT))
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    send(unit, epochs_of(world, world.receiver, "beta", wrong["from"]["stream"]))
    send(unit, epochs_of(world, world.sender, "alpha", wrong["to"]["stream"]))
    answered(unit, 3, pairs=2)
    with pytest.raises(ServerError, match="alpha:eth0:out before beta:eth1:in; create it with --from and --to swapped"):
        asked(admin, "wrong")
    means = {row["segment"]: row["mean_ns"] for row in admin.rank_segments(0)}
    assert means["wrong"] is None
    assert means["ab"] == pytest.approx(asked(admin).aggregate["mean_ns"], rel=0.02)
    for is_removed in (False, True):
        if is_removed:
            admin.remove_segment("wrong")
        result = asked(admin)
        _, delay = truth_between(world, *span_of(result))
        assert result.clock["uncertainty_ns"] is None
        assert result.aggregate["mean_ns"] == pytest.approx(delay[delay != LOST].mean(), rel=0.02)


@pytest.mark.parametrize("by_ns", [86_400 * SECOND, -3_600 * SECOND])
def test_a_clock_that_is_set_far_leaves_the_way_back_within_reach(unit: Unit, world: TwoPointWorld, by_ns: int) -> None:
    """What comes back is looked for at all times to which the receiver's clock was set."""
    sender, receiver = (replace(one, packet_id=one.packet_id + np.uint64(1)) for one in (world.sender, world.receiver))
    back = in_order(replace(world, sender=sender, receiver=receiver))
    ends = [
        ("alpha", OUT, recorded(world.sender, world, SetClock(), "alpha")),
        ("beta", IN, recorded(world.receiver, world, SetClock((20 * SECOND, by_ns)), "beta")),
        ("beta", "point:eth1:out:g1", recorded(back.sender, back, SetClock((20 * SECOND, by_ns)), "beta")),
        ("alpha", "point:eth0:in:g1", recorded(back.receiver, back, SetClock(), "alpha")),
    ]
    for node, stream, epochs in ends:
        unit.store.add([replace(epoch, node=node, stream=stream) for epoch in epochs])
    (there,) = work_of({}).pairs
    pairs = [there, Pair(from_node="beta", from_stream=ends[2][1], to_node="alpha", to_stream=ends[3][1])]
    runs = RunStore(unit.store)
    within = {"most_runs": 64, "most_bytes": 1 << 28}
    runs.add_all(answer_pairs(unit.store.engine.url, runs.pairs(pairs), **within), now_ns=START_NS)
    for pair in pairs:
        found = answer_segment(unit.store.engine.url, replace(work_of({}), pairs=(pair,)))
        assert found.get("warnings", []) == []
        assert found["clock"]["source"] == "packets both ways"
        low, high = found["aggregate"]["low_ns"], found["aggregate"]["high_ns"]
        assert low <= world.delay_ns[world.delay_ns != LOST].mean() <= high
        assert high - low < 100_000_000


def with_header(epoch: Epoch, **fields: object) -> bytes:
    """An epoch's bytes with other fields than a node would send."""
    version, body, _ = cbor2.loads(encode(epoch))
    items = cbor2.loads(body)
    for name, value in fields.items():
        items[{"frame": 5, "recorded": 6, "counters": 7, "keys": 8}[name]] = value
    body = cbor2.dumps(items)
    return cbor2.dumps([version, body, hash_bytes(body) & 0xFFFFFFFF])


@pytest.mark.parametrize("first_ns", [2**63 - 10**12, 2**62])
def test_times_that_no_packet_has_spoil_no_segment_but_their_own(
    unit: Unit, admin: Client, world: TwoPointWorld, first_ns: int
) -> None:
    create(admin)
    admin.create_segment("good", "alpha:eth2", "beta:eth3", memory_bytes=MEMORY, epoch_ns=5 * SECOND)
    there = admin.segment("good")["directions"][0]
    with unit.client("alpha") as client:
        for epoch in epochs_of(world, world.sender, "alpha", OUT):
            assert client.post("/api/v1/epochs", content=with_header(epoch, frame=[first_ns, 10**9])).is_success
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 3)
    send(unit, epochs_of(world, world.sender, "alpha", there["from"]["stream"]))
    send(unit, epochs_of(world, world.receiver, "beta", there["to"]["stream"]))
    answered(unit, 3, pairs=2)
    assert asked(admin, "good").aggregate["sent"] > 0
    with pytest.raises(ServerError, match="the sender's times are no times of packets"):
        asked(admin)


def test_counts_that_no_run_has_do_not_overflow_the_totals(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    create(admin)
    with unit.client("alpha") as client:
        for epoch in epochs_of(world, world.sender, "alpha", OUT):
            assert client.post("/api/v1/epochs", content=with_header(epoch, recorded=2**63 - 1)).is_success
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 3)
    (row,) = admin.rank_segments(from_ns=0)
    assert (row["segment"], row["lost"]) == ("ab", None)


def work_of(current: Mapping[tuple[str, str], Sequence[Epoch]]) -> SegmentWork:
    pair = Pair(from_node="alpha", from_stream=OUT, to_node="beta", to_stream=IN)
    told = {place: [encode(epoch) for epoch in epochs] for place, epochs in current.items()}
    within = {"memory_bytes": MEMORY, "from_ns": 0, "to_ns": 2**62, "most_bytes": 1 << 28}
    return SegmentWork(name="ab", ends=("a", "b"), pairs=(pair,), current=told, **within)  # type: ignore[arg-type]


def test_flows_that_only_open_epochs_have_are_on_the_segment(unit: Unit, world: TwoPointWorld) -> None:
    ends = ("alpha", OUT, world.sender), ("beta", IN, world.receiver)
    work = work_of({(node, stream): epochs_of(world, batch, node, stream) for node, stream, batch in ends})
    RunStore(unit.store).pairs(work.pairs)
    found = answer_segment(unit.store.engine.url, work)
    assert found["notes"] == []
    assert found["aggregate"]["sent"] > 15_000
    assert len(found["flows"]) == len(world.keys)


@pytest.mark.parametrize("lie", [{"counters": b"\x78\x9c" + b"\xff" * 30}, {"keys": [b"\xff" * 5]}, {"keys": [7]}])
def test_an_open_epoch_that_cannot_be_read_costs_its_run_and_nothing_else(
    unit: Unit, world: TwoPointWorld, lie: dict[str, object]
) -> None:
    ends = ("alpha", OUT, world.sender), ("beta", IN, world.receiver)
    told = {(node, stream): epochs_of(world, batch, node, stream) for node, stream, batch in ends}
    work = work_of(told)
    whole = answer_segment(unit.store.engine.url, work)
    there = ("beta", IN)
    forged = [*(encode(epoch) for epoch in told[there][:-2]), with_header(told[there][-2], **lie)]
    found = answer_segment(unit.store.engine.url, replace(work, current={**work.current, there: forged}))
    assert 0 < found["aggregate"]["sent"] < whole["aggregate"]["sent"]
    assert len(found["flows"]) == len(world.keys)


def test_an_answer_reaches_into_open_epochs_up_to_a_place_that_both_ends_looked_at(
    unit: Unit, world: TwoPointWorld
) -> None:
    """Epochs of a minute are open nearly all the time."""
    asked_ns = START_NS + 30 * SECOND
    ends = ("alpha", OUT, world.sender), ("beta", IN, world.receiver)
    told, looks = {}, {}
    for node, stream, batch in ends:
        point = PolledPoint(batch, PLAN, world, node=node, epoch_ns=60 * SECOND)
        closed, seen = watched(point, asked_ns)
        told[node, stream] = [replace(epoch, stream=stream) for epoch in closed]
        looks[node, stream] = [replace(epoch, stream=stream) for epoch in seen]
        assert 1 <= len(seen) <= LOOKS
    url = unit.store.engine.url
    found = answer_segment(url, work_of({place: [*looks[place], *told[place]] for place in told}))
    (span,) = found["covered"]
    assert asked_ns <= span["to_ns"] <= asked_ns + WINDOW_NS
    _, delay = truth_between(world, span["from_ns"], span["to_ns"])
    assert (found["aggregate"]["sent"], found["aggregate"]["lost"]) == (len(delay), int((delay == LOST).sum()))
    without = answer_segment(url, work_of(told))
    assert without["covered"][-1]["to_ns"] < asked_ns


def test_a_run_that_is_answered_during_the_question_counts_once(
    unit: Unit, admin: Client, world: TwoPointWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(admin)
    send(unit, epochs_of(world, world.sender, "alpha", OUT))
    send(unit, epochs_of(world, world.receiver, "beta", IN))
    answered(unit, 3)
    eventually(lambda: asked(admin).aggregate["sent"] > 18_000)
    work = work_of({})
    before = answer_segment(unit.store.engine.url, work)["aggregate"]["sent"]
    pairs = RunStore.pairs
    # As the store was when nothing had been answered yet.
    monkeypatch.setattr(
        RunStore, "pairs", lambda *a: [replace(one, sent_until=-1, received_until=-1) for one in pairs(*a)]
    )
    assert answer_segment(unit.store.engine.url, work)["aggregate"]["sent"] == before


@pytest.mark.parametrize("together", [1, 3])
def test_runs_that_are_answered_while_a_question_is_count_once(
    unit: Unit, world: TwoPointWorld, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Even if the stored answer is of several of them."""
    runs, work = RunStore(unit.store), work_of({})
    runs.pairs(work.pairs)
    for batch, node, stream in ((world.sender, "alpha", OUT), (world.receiver, "beta", IN)):
        unit.store.add(epochs_of(world, batch, node, stream))
    before = answer_segment(unit.store.engine.url, work)
    known = questions.known_pairs

    def overtaken(*asked: Any) -> list[KnownPair]:
        pairs = known(*asked)
        within = {"most_runs": 64, "most_bytes": 1 << 28, "together": together}
        runs.add_all(answer_pairs(unit.store.engine.url, pairs, **within), now_ns=START_NS)
        return pairs

    monkeypatch.setattr(questions, "known_pairs", overtaken)
    after = answer_segment(unit.store.engine.url, work)
    assert runs.pairs(work.pairs)[0].sent_until > 0
    assert after["covered"] == before["covered"]
    for name in ("sent", "received", "lost"):
        assert after["aggregate"][name] == before["aggregate"][name]


@pytest.mark.parametrize(
    ("offsets", "offset", "uncertainty"),
    [
        ([None, -500, -500], -500, 10),
        ([500, None], 500, 10),
        ([0, 100, 200], 100, 110),
        ([500, -500], -500, 1010),
        ([None], 0, None),
    ],
)
def test_an_interval_s_clock_is_that_of_all_runs_whose_delays_it_has(
    offsets: list[int | None], offset: int, uncertainty: int | None
) -> None:
    """Runs during which a clock was set have none."""
    clocks = [
        ClockAt(0.0, None, None, WAS_SET) if at is None else ClockAt(at, at - 10, at + 10, "the test") for at in offsets
    ]
    assert questions._clock_of(clocks) == {"offset_ns": offset, "uncertainty_ns": uncertainty}
