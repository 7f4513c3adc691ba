"""`SegmentResult` by itself: rows in columns, choices of them, and what it becomes elsewhere; the truth is counted."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass

import pytest

import sojourn
from odd_captures import FLOWS, SECOND_NS, START_NS, Packet, two_points, write
from sojourn.core.errors import UsageError
from sojourn.segments.result import SegmentResult

FIVE_TUPLE = ["src_ip", "src_port", "dest_ip", "dest_port", "protocol"]
ANSWER = ["packets", "lost", "mean_ns", "std_ns", "low_ns", "high_ns", "samples", "method"]


@dataclass(frozen=True)
class World:
    """What was sent and received, and the files that hold it."""

    sent: list[Packet]
    received: list[Packet]
    files: tuple[str, str]

    def of_flow(self, port: int) -> tuple[int, int, float]:
        """Packets sent, lost, and the mean delay of those that arrived."""
        sent = {p.serial: p.time_ns for p in self.sent if 4000 + p.flow == port}
        delays = [p.time_ns - sent[p.serial] for p in self.received if p.serial in sent]
        return len(sent), len(sent) - len(delays), sum(delays) / len(delays)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("result")
    sent, received = two_points(both_ways=False)
    return World(sent, received, (write(folder / "a.pcap", sent), write(folder / "b.pcap", received)))


@pytest.fixture(scope="module")
def exact(world: World) -> SegmentResult:
    return sojourn.measure(*world.files, sketch="exact", clock="none")


@pytest.fixture(scope="module")
def by_second(world: World) -> SegmentResult:
    return sojourn.measure(*world.files, clock="none", interval="1s")


def test_columns_are_of_one_length_and_rows_hold_the_truth(world: World, exact: SegmentResult) -> None:
    columns = exact.columns()
    assert list(columns)[:5] == FIVE_TUPLE
    assert set(ANSWER) <= set(columns)
    assert {len(column) for column in columns.values()} == {FLOWS} == {len(exact)}
    for row in exact:
        packets, lost, mean = world.of_flow(row["src_port"])
        assert (row["packets"], row["lost"]) == (packets, lost)
        assert row["mean_ns"] == pytest.approx(mean, abs=1)
    assert exact[2] == list(exact)[2]
    assert sum(columns["packets"]) == exact.aggregate["sent"] == len(world.sent)


def test_rows_are_chosen_sorted_and_cut_while_totals_stay(exact: SegmentResult) -> None:
    slowest = exact.select("mean", 3)
    means = slowest.columns()["mean_ns"]
    assert list(means) == sorted(exact.columns()["mean_ns"], reverse=True)[:3]
    assert len(slowest) == len(list(slowest)) == 3
    assert slowest.fields() == exact.fields()
    assert slowest.summary == exact.summary
    assert len(exact.select(limit=2)) == 2
    assert list(exact.select(limit=2)) == list(exact)[:2]
    assert len(exact.select(limit=100)) == FLOWS
    with pytest.raises(UsageError, match="no column speed to sort by"):
        exact.select("speed")


def test_a_limit_is_that_of_each_interval_and_of_all_rows_once_they_are_sorted(by_second: SegmentResult) -> None:
    starts = [part["start_ns"] for part in by_second.intervals]
    assert [start // SECOND_NS - START_NS // SECOND_NS for start in starts] == [0, 1, 2, 3]
    assert len(by_second) == 4 * FLOWS == len(list(by_second))
    two_each = by_second.select(limit=2)
    assert len(two_each) == 8 == len(list(two_each))
    assert [row["start_ns"] for row in two_each] == [start for start in starts for _ in range(2)]
    assert len(by_second.select("packets", 2)) == 2
    assert sum(part["sent"] for part in by_second.intervals) == by_second.aggregate["sent"]


def test_a_dictionary_is_plain_json_with_the_fields_and_the_rows(
    exact: SegmentResult, by_second: SegmentResult
) -> None:
    for result in (exact, by_second, exact.select("loss", 2)):
        given = result.to_dict()
        assert json.loads(json.dumps(given)) == given
        assert given["flows"] == list(result)
        assert given["aggregate"] == dict(exact.aggregate) or result is by_second
    assert "intervals" not in exact.to_dict()
    assert len(by_second.to_dict()["intervals"]) == 4


def test_tables_have_the_columns_and_their_types(exact: SegmentResult, by_second: SegmentResult) -> None:
    for result in (exact, by_second):
        table, frame = result.to_arrow(), result.to_pandas()
        assert table.column_names == list(frame.columns) == list(result.columns())
        assert table.num_rows == len(frame) == len(result)
        assert {str(table.schema.field(name).type) for name in ("src_port", "packets", "mean_ns")} == {"int64"}
        assert str(table.schema.field("src_ip").type) == "string"
        assert table.column("mean_ns").to_pylist() == [row["mean_ns"] for row in result]


def test_the_summary_says_what_the_totals_are(world: World, exact: SegmentResult) -> None:
    lost = len(world.sent) - len(world.received)
    lines = exact.summary.splitlines()
    words = f"{len(world.sent):,} packets sent, {len(world.received):,} received, {lost} lost"
    assert any(line.startswith(words) for line in lines)
    assert any(line.startswith("mean delay 5.50 ms") for line in lines)
    assert repr(exact) == f"<SegmentResult: {FLOWS} flows>\n{exact.summary}"


def test_a_result_is_not_changed(exact: SegmentResult) -> None:
    with pytest.raises(FrozenInstanceError):
        exact.limit = 3  # type: ignore[misc]


def test_a_result_without_flows_has_rows_nowhere() -> None:
    aggregate = {"sent": 1, "received": 0, "lost": 1, "mean_ns": None, "reason": "no usable cells"}
    empty = SegmentResult(aggregate, {"name": "lda"})
    assert (len(empty), list(empty), empty.columns(), empty.to_arrow().num_rows) == (0, [], {}, 0)
    assert empty.summary.splitlines()[-1] == "mean delay unknown: no usable cells"
    assert empty.to_dict()["flows"] == []
