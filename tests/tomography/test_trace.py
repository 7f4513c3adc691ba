"""Traces: whatever a file holds becomes clean columns, with what was left out counted by reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import InputError
from sojourn.tomography.reading import read_trace, read_truth
from sojourn.tomography.trace import MISSING, PacketRow, make_trace

MS = 1_000_000
GOOD: PacketRow = (3, 0, [3, 2, 0], 10 * MS, 30 * MS, 5 * MS)
HEADER = "origin,seq,path,t0_s,t_sink_s,sum_of_delays_s\n"


def changed(**fields: object) -> PacketRow:
    names = ("origin", "sequence", "path", "t0", "sink", "sum")
    row = dict(zip(names, GOOD, strict=True)) | {"sequence": 1} | fields
    return tuple(row.values())  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (changed(path=[3]), "path without a hop"),
        (changed(path=[]), "path without a hop"),
        (changed(path=[3, *range(10, 300), 0]), "path of more than 256 nodes"),
        (changed(path=[3, -4, 0]), "unknown node"),
        (changed(path=[2, 3, 0]), "path that starts elsewhere than at the origin"),
        (changed(path=[3, 3, 0]), "path with a hop from a node to itself"),
        (changed(path=[3, 2, 1]), "path that ends elsewhere"),
        (changed(path=[3, 0, 2, 0]), "path through the sink"),
        (changed(sequence=-1), "negative sequence number"),
        (changed(t0=-1), "negative time"),
        (changed(sink=10 * MS), "arrival at the sink before the generation"),
        (changed(sink=1 << 63), "time out of range"),
        (changed(sink=1 << 51), "delay of more than 13 days"),
        (GOOD, "duplicate of a packet"),
    ],
)
def test_a_packet_that_cannot_be_used_is_counted_by_reason(row: PacketRow, reason: str) -> None:
    trace = make_trace([GOOD, row, (4, 0, [4, 0], 0, 5 * MS, MISSING), (5, 0, [5, 0], 0, 6 * MS, MISSING)])
    assert len(trace) == 3
    assert trace.ignored == {reason: 1}


def test_packets_come_in_the_order_of_the_sink_with_their_paths_flat() -> None:
    trace = make_trace([GOOD, (4, 7, [4, 0], 0, 5 * MS, 2 * MS)])
    assert trace.origin.tolist() == [4, 3]
    assert trace.node.tolist() == [4, 0, 3, 2, 0]
    assert trace.start.tolist() == [0, 2, 5]
    assert trace.hop.tolist() == [0, 1, 0, 1, 2]
    assert trace.owner.tolist() == [0, 0, 1, 1, 1]
    assert trace.is_visit.tolist() == [True, False, True, True, False]
    assert trace.sink == 0


def test_sums_that_overflowed_or_are_missing_are_not_used() -> None:
    rows = [changed(sequence=k, t0=k * MS, sink=(k + 50) * MS, sum=s) for k, s in enumerate((65_535 * MS, MISSING, 0))]
    trace = make_trace(rows)
    assert trace.sum_ns.tolist() == [MISSING, MISSING, 0]
    assert trace.notes == {"sum of delays that may have overflowed, not used": 1, "sum of delays missing": 1}


def sent(*numbers: int) -> list[PacketRow]:
    return [(3, n, [3, 0], k * 1_000 * MS, (k * 1_000 + 9) * MS, MISSING) for k, n in enumerate(numbers)]


@pytest.mark.parametrize(
    ("numbers", "steps", "gaps"),
    [
        ((0, 1, 2), [1, 1], 0),
        ((0, 1, 4), [1, 3], 2),
        ((254, 255, 0, 1), [1, 1, 1], 0),
        ((65_534, 65_535, 0), [1, 1], 0),
        ((65_533, 1), [4], 3),
    ],
)
def test_sequence_numbers_are_unwrapped_and_their_gaps_counted(
    numbers: tuple[int, ...], steps: list[int], gaps: int
) -> None:
    trace = make_trace(sent(*numbers))
    assert np.diff(trace.sequence).tolist() == steps
    assert trace.shown_sequence.tolist() == list(numbers)
    assert trace.gaps == gaps


def test_a_node_that_starts_anew_never_seems_to_follow_its_old_packets() -> None:
    trace = make_trace(sent(40, 41, 0, 1))
    steps = np.diff(trace.sequence).tolist()
    assert steps[0] == steps[2] == 1
    assert steps[1] > 1
    assert trace.notes["sequence number that started anew"] == 1


def test_loops_are_kept_and_noted() -> None:
    trace = make_trace([changed(path=[3, 2, 5, 3, 2, 0])])
    assert trace.notes["path with a loop"] == 1
    assert len(trace.node) == 6


def test_nothing_usable_is_an_error_that_says_why() -> None:
    with pytest.raises(InputError, match="1 × negative time"):
        make_trace([changed(t0=-1)])


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl", "jsonl.gz"])
def test_text_formats_read_the_same(tmp_path: Path, ending: str) -> None:
    if ending.startswith("csv"):
        text = HEADER + "3,0,3-2-0,0.01,0.03,0.0051\n"
    else:
        fields = {"origin": 3, "seq": 0, "path": [3, 2, 0], "t0_s": 0.01, "t_sink_s": 0.03, "sum_of_delays_s": 0.0051}
        text = json.dumps(fields) + "\n"
    path = tmp_path / f"trace.{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    trace = read_trace(path)
    assert trace.node.tolist() == [3, 2, 0]
    assert (trace.t0_ns[0], trace.sink_ns[0], trace.sum_ns[0]) == (10 * MS, 30 * MS, 5 * MS)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,1,3-2-0,0.01,0.03,0.005", "origin that is no whole number"),
        ("3,1.5,3-2-0,0.01,0.03,0.005", "seq that is no whole number"),
        ("9007199254740993,1,3-2-0,0.01,0.03,0.005", "origin that is no whole number"),
        ("3,1_0,3-2-0,0.01,0.03,0.005", "seq that is no whole number"),
        ("3,nan,3-2-0,0.01,0.03,0.005", "seq that is no whole number"),
        ("3,1,3-?-0,0.01,0.03,0.005", "path that is no sequence of nodes such as 14-5-0"),
        ("3,1,3>2>0,0.01,0.03,0.005", "path that is no sequence of nodes such as 14-5-0"),
        ("3,1,,0.01,0.03,0.005", "path that is empty"),
        ("3,1,3-2-0,1e300,0.03,0.005", "t0_s out of range"),
        ("3,1,3-2-0,1_0,0.03,0.005", "t0_s that is no number"),
        ("3,1,3-2-0,0.01,3e9,0.005", "delay of more than 13 days"),
        ("3,1,3-2-0,0,01,0,03,0.005", "row with more columns than the header"),
        ('3,1,"3-2-0,0.01,0.03,0.005', "line with an open quote"),
        (f"3,1,{'3-2-' * 20_000}0,0.01,0.03,0.005", "line of more than 65,536 characters"),
        ("3,1,3-99999999999-0,0.01,0.03,0.005", "unknown node"),
        ("3,1,3-2-0,soon,0.03,0.005", "t0_s that is no number"),
        ("3,1,3-2-0,0.01,nan,0.005", "t_sink_s that is no number"),
        ("3,1,3-2-0,0.01,inf,0.005", "t_sink_s that is no number"),
        ("3,1,3-2-0,0.01,,0.005", "packet that was not delivered"),
        ("3,1,3-2-0,0.01", "row with fewer columns than the header"),
        ("3,1,3-2-0,-0.01,0.03,0.005", "negative time"),
    ],
)
def test_a_row_that_cannot_be_read_is_counted_by_reason(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}3,0,3-2-0,0.01,0.03,0.005\n{row}\n")
    trace = read_trace(path)
    assert len(trace) == 1
    assert trace.ignored == {reason: 1}


def test_a_sum_that_is_no_time_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    sums = (",", ",x", ",-1", ",nan", "", ",1e300", ",65.535", ",65.534")
    path.write_text(HEADER + "".join(f"3,{k},3-2-0,{k}.01,{k}.03{s}\n" for k, s in enumerate(sums)))
    trace = read_trace(path)
    assert trace.sum_ns.tolist() == [MISSING] * 7 + [65_534 * MS]
    assert trace.notes == {
        "sum of delays that may have overflowed, not used": 1,
        "sum of delays that is no time, not used": 4,
        "sum of delays missing": 2,
    }


def test_a_file_without_the_columns_or_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column origin"):
        read_trace(path)
    damaged = tmp_path / "trace.csv.gz"
    damaged.write_bytes(gzip.compress(HEADER.encode() * 500)[:40])
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(damaged)
    parquet = tmp_path / "trace.parquet"
    parquet.write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(parquet)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("trace.csv", b"", "it is empty; give a file with the columns origin"),
        ("trace.jsonl", b"", "it is empty"),
        ("trace.csv", HEADER.encode(), "it has no row"),
        ("trace.csv.gz", gzip.compress(HEADER.encode(), mtime=0), "it has no row"),
        ("trace.csv", HEADER.replace(",", ";").encode() + b"3;0;3-0;0;1;0\n", "the columns are separated by ';'"),
        ("trace.csv", HEADER.replace(",", "\t").encode(), r"the columns are separated by '\\t'"),
        ("trace.csv", b"origin,seq,path,path,t0_s,t_sink_s\n", "column path more than once"),
        ("trace.csv", bytes(range(128, 256)), "it is no text, or its first line is damaged"),
        ("trace.jsonl", bytes(range(128, 256)), "no usable packet .1 × line that is no UTF-8 text"),
        ("trace.csv", HEADER.encode("utf-16"), "it is no text"),
        ("trace.csv", HEADER.encode() + b"x,0,3-0,0,1,0\n", "no usable packet .1 × origin that is no whole number"),
        ("trace.jsonl", b"[1]\n{\n", "no usable packet .2 × line that is no JSON object"),
        ("trace.jsonl", b"[" * 60_000 + b"\n", "1 × line that is no JSON object"),
        ("trace.parquet", b"", "cannot be read"),
        ("trace.parquet", b"PAR1" + bytes(60) + b"PAR1", "cannot be read"),
    ],
)
def test_a_file_of_which_nothing_can_be_used_is_refused_with_its_name_and_the_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=reason) as refused:
        read_trace(tmp_path / name)
    assert refused.value.where == str(tmp_path / name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_damaged_line_costs_that_line_alone(tmp_path: Path, ending: str) -> None:
    rows = [f"3,{k},3-2-0,{k}.01,{k}.03,0.005\n" for k in range(3)]
    if ending == "jsonl":
        fields = {"origin": 3, "path": "3-2-0", "t_sink_s": 9.0}
        rows = [json.dumps(fields | {"seq": k, "t0_s": k / 10}) + "\n" for k in range(3)]
    lines = [row.encode() for row in rows]
    lines[1] = lines[1].replace(b"3-2", b"3-\xff2")
    path = tmp_path / f"trace.{ending}"
    path.write_bytes((HEADER.encode() if ending == "csv" else b"") + b"".join(lines))
    trace = read_trace(path)
    assert trace.sequence.tolist() == [0, 2]
    assert trace.ignored == {"line that is no UTF-8 text": 1}


def test_a_file_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    text = HEADER + "".join(f"3,{k},3-2-0,{k}.01,{k}.03,{k % 97 / 1000}\n" for k in range(20_000))
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(text.encode())[:-5_000])
    trace = read_trace(path)
    assert 5_000 < len(trace) < 20_000
    assert trace.ignored["end of the file, which is damaged"] == 1


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_what_cannot_be_opened_is_said_with_its_cause(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"folder.{ending}").mkdir()
    for name, fault in ((f"folder.{ending}", IsADirectoryError), (f"none.{ending}", FileNotFoundError)):
        with pytest.raises(InputError) as refused:
            read_trace(tmp_path / name)
        assert refused.value.where == str(tmp_path / name)
        assert isinstance(refused.value.__cause__, fault)


WRONG: list[tuple[dict[str, object], str]] = [
    ({"origin": [3]}, "origin that is no whole number"),
    ({"origin": True}, "origin that is no whole number"),
    ({"origin": 10**400}, "origin that is no whole number"),
    ({"seq": None}, "seq that is no whole number"),
    ({"seq": float("nan")}, "seq that is no whole number"),
    ({"seq": 1.5}, "seq that is no whole number"),
    ({"path": {"a": 1}}, "path that is neither text nor list"),
    ({"path": []}, "path that is empty"),
    ({"path": [3.5, 0]}, "path that is no sequence of nodes such as 14-5-0"),
    ({"path": [3, True]}, "path that is no sequence of nodes such as 14-5-0"),
    ({"path": [3, [0]]}, "path that is no sequence of nodes such as 14-5-0"),
    ({"path": [float("inf"), 0]}, "path that is no sequence of nodes such as 14-5-0"),
    ({"t0_s": [0]}, "t0_s that is no number"),
    ({"t0_s": True}, "t0_s that is no number"),
    ({"t0_s": 10**400}, "t0_s that is no number"),
    ({"t_sink_s": {}}, "t_sink_s that is no number"),
    ({"t_sink_s": None}, "packet that was not delivered"),
]


@pytest.mark.parametrize(("change", "reason"), WRONG)
def test_values_of_the_wrong_type_are_counted_by_reason(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    good = {"origin": 3, "seq": 0, "path": [3, 2, 0], "t0_s": 0.01, "t_sink_s": 0.03}
    rows = [good, good | {"seq": 1} | change, {"seq": 2}]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert len(trace) == 1
    assert trace.ignored == {reason: 1, "row without t_sink_s": 1}


def test_parquet_columns_of_other_types_are_counted_by_reason(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {
        "origin": [3.0, 3.5, 3.0, 3.0],
        "seq": [0, 1, None, 3],
        "path": [[3, 2, 0], [3, 0], [3, 0], None],
        "t0_s": [0.0, 1.0, 2.0, 3.0],
        "t_sink_s": [1.0, 2.0, 3.0, 4.0],
        "sum_of_delays_s": [b"x", None, None, None],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "trace.parquet")
    trace = read_trace(tmp_path / "trace.parquet")
    assert trace.node.tolist() == [3, 2, 0]
    assert trace.ignored == {
        "origin that is no whole number": 1,
        "seq that is no whole number": 1,
        "path that is empty": 1,
    }
    assert trace.notes == {"sum of delays that is no time, not used": 1}
    parquet.write_table(pyarrow.table(columns).slice(0, 0), tmp_path / "trace.parquet")
    with pytest.raises(InputError, match="it has no row"):
        read_trace(tmp_path / "trace.parquet")


@given(st.text(alphabet='0123456789-.,eEx"\n{}[]: ', max_size=300), st.sampled_from(["csv", "jsonl"]))
def test_no_text_does_worse_than_be_refused(tmp_path_factory: pytest.TempPathFactory, text: str, ending: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"trace.{ending}"
    path.write_text((HEADER if ending == "csv" else "") + text)
    try:
        trace = read_trace(path)
    except InputError:
        return
    assert len(trace) >= 1


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl", "parquet"])
def test_no_damage_does_worse_than_be_refused(tmp_path: Path, ending: str) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [
        {"origin": 3, "seq": k, "path": "3-2-0", "t0_s": k + 0.01, "t_sink_s": k + 0.03, "sum_of_delays_s": 0.005}
        for k in range(30)
    ]
    text = HEADER + "".join(",".join(map(str, row.values())) + "\n" for row in rows)
    path = tmp_path / f"trace.{ending}"
    if ending == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows) if ending == "jsonl" else text
        path.write_bytes(gzip.compress(lines.encode()) if ending.endswith("gz") else lines.encode())
    whole, random = path.read_bytes(), np.random.default_rng(6)
    refused: list[str] = []
    for _try in range(300):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), random.choice([1, 3, 20])):
            damaged[place] = random.integers(256)
        path.write_bytes(damaged[: random.integers(len(whole))] if random.random() < 0.2 else damaged)
        try:
            assert len(read_trace(path)) >= 1
        except InputError as error:
            refused.append(str(error))
    assert 0 < len(refused) < 300
    assert not any("\n" in line for line in refused)


def test_a_truth_is_matched_by_packet_hop_and_node(tmp_path: Path) -> None:
    path = tmp_path / "hops.csv"
    path.write_text("origin,seq,hop_index,node,t_arrival_s\n3,0,0,3,0.01\n3,0,1,9,0.02\n")
    assert read_truth(path, make_trace([GOOD])).tolist() == [10 * MS, -1, 30 * MS]


def test_the_collection_traces_are_read_whole(shared_data: Path) -> None:
    trace = read_trace(shared_data / "collection" / "n100_center_20s_packets.csv.gz")
    assert len(trace) == 17_126
    assert trace.ignored == {"packet that was not delivered": 11}
    truth = read_truth(shared_data / "collection" / "n100_center_20s_hops.csv.gz", trace)
    assert (truth[trace.start[:-1]] == trace.t0_ns).all()
    assert (truth >= 0).mean() > 0.999


def test_packets_that_come_back_to_a_node_are_looping() -> None:
    rows = [
        (3, 0, [3, 2, 1, 0], 0, 9 * MS, MISSING),
        (3, 1, [3, 2, 3, 1, 0], 10 * MS, 19 * MS, MISSING),
        (2, 0, [2, 1, 0], 20 * MS, 29 * MS, MISSING),
        (2, 1, [2, 1, 4, 1, 4, 1, 0], 30 * MS, 39 * MS, MISSING),
    ]
    assert make_trace(rows).is_looping.tolist() == [False, True, False, True]
