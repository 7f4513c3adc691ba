"""Queries over HTTP: totals, instances, ranges that cut epochs, groups of nodes, the current epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from query_unit import LIMITS, Unit, make_epoch, running_unit, undecodable

from sojourn.epochs.wire import encode
from sojourn.node.transports.http import HttpTransport
from sojourn.node.transports.transport import Announcement, Asked
from sojourn.store.epochs import StreamRecord
from waiting import eventually

SECOND = 10**9


def ask(unit: Unit, **question) -> list[dict]:
    question = {"metric": "disk_io", "node": "alpha", "from_ns": 0, "to_ns": 10**12, "live": False, **question}
    with unit.client("viewer") as client:
        response = client.post("/api/v1/query", json=question)
    assert response.status_code == 200, response.text
    return response.json()


@contextmanager
def answering(unit: Unit, answer: Callable[[HttpTransport, Asked], None]) -> Iterator[None]:
    """A node alpha that listens, and answers one question."""
    transport = HttpTransport(unit.url, unit.tokens["alpha"], node="alpha")

    def answer_one() -> None:
        asked = transport.next_question(60)
        assert asked is not None
        answer(transport, asked)

    node = threading.Thread(target=answer_one)
    node.start()
    with unit.client("viewer") as client:
        eventually(lambda: any(n["listening"] for n in client.get("/api/v1/nodes").json()), pause=0.01)
    yield
    node.join()


@pytest.fixture
def filled(unit: Unit) -> Unit:
    """Ten epochs of one second on each of two nodes; process p[i] adds i + 1 (alpha) or 10 (beta) in each."""
    for node, values in (("alpha", (1, 2, 3)), ("beta", (10, 10, 10))):
        transport = HttpTransport(unit.url, unit.tokens[node], node=node)
        assert transport.announce(Announcement("disk", "disk_io", "operations", "process")) is None
        epochs = [encode(make_epoch(i, node=node, time_ns=(i + 1) * SECOND, values=values)) for i in range(10)]
        assert {receipt.status for receipt in transport.send(epochs)} == {"stored"}
        assert transport.announce(Announcement("disk", "disk_io", "operations", "process")) == 9
        transport.close()
    return unit


def test_a_total_is_exact_and_says_what_it_covers(filled: Unit) -> None:
    (answer,) = ask(filled)
    assert (answer["value"], answer["low"], answer["high"], answer["samples"]) == (60, 60, 60, 30)
    assert answer["epochs"] == 10
    assert answer["unit"] == "operations"
    assert answer["covered"][0] == {"from_ns": SECOND, "to_ns": SECOND}
    (half,) = ask(filled, from_ns=3 * SECOND, to_ns=5 * SECOND)
    assert half["value"] == 18


def test_an_epoch_that_cannot_be_decoded_is_named_and_the_rest_answered(filled: Unit) -> None:
    transport = HttpTransport(filled.url, filled.tokens["alpha"], node="alpha")
    assert transport.send([undecodable(10, time_ns=3 * SECOND)])[0].status == "stored"
    transport.close()
    for _ in range(2):  # when it is found, and once it is known
        (answer,) = ask(filled)
        assert (answer["value"], answer["epochs"]) == (60, 10)
        (note,) = answer["notes"]
        assert note.startswith("epoch 10 of alpha/disk cannot be decoded and is left out: ")
    with filled.client("viewer") as client:
        listed = client.get("/api/v1/nodes/alpha/streams/disk/epochs").json()
        assert [row["sequence"] for row in listed if row["set_aside"]] == [10]
        assert "sojourn_stored_epochs_set_aside 1.0" in client.get("/metrics").text


def test_a_current_epoch_that_cannot_be_decoded_is_named_and_the_rest_answered(filled: Unit) -> None:
    def answer(transport: HttpTransport, asked: Asked) -> None:
        transport.answer(asked, [undecodable(10), encode(make_epoch(11, values=(5,)))])

    with answering(filled, answer):
        (found,) = ask(filled, live=True)
    assert (found["value"], found["live"]) == (65, True)
    assert found["notes"][0].startswith("an epoch of alpha/disk cannot be decoded and is left out: ")


@pytest.mark.parametrize("method", ["literal", "joint"])
def test_an_instance_is_answered_with_an_interval_that_holds_the_truth(filled: Unit, method: str) -> None:
    (answer,) = ask(filled, instance="p[2]", method=method)
    assert answer["low"] <= 30 <= answer["high"]
    (mean,) = ask(filled, instance="p[2]", method=method, stat="mean")
    assert mean["value"] is None or mean["low"] <= 3 <= mean["high"]


def test_the_largest_instances_come_first(filled: Unit) -> None:
    answers = ask(filled, top=2)
    assert [answer["instance"] for answer in answers] == ["p[2]", "p[1]"]


def test_every_instance_that_fits_a_pattern_is_answered_the_largest_first(filled: Unit) -> None:
    answers = ask(filled, instance="*")
    assert [answer["instance"] for answer in answers] == ["p[2]", "p[1]", "p[0]"]
    assert all(answer["low"] <= 10 * (3 - i) <= answer["high"] for i, answer in enumerate(answers))
    assert [answer["instance"] for answer in ask(filled, instance="p[[]1]")] == ["p[[]1]"]
    assert [answer["instance"] for answer in ask(filled, instance="?[2]")] == ["p[2]"]
    assert [answer["instance"] for answer in ask(filled, instance="p*", top=1)] == ["p[2]"]
    (none,) = ask(filled, instance="q*")
    assert (none["value"], none["reason"], none["members"]) == (None, "unknown instance", 0)
    assert ask(filled, instance="*", from_ns=20 * SECOND)[0]["reason"] == "no epochs in range"


def test_several_nodes_are_added_up_listed_one_by_one_or_in_groups(filled: Unit) -> None:
    both = ["beta", "alpha"]
    (total,) = ask(filled, node=both)
    assert (total["value"], total["node"], total["members"]) == (360, None, None)
    each = ask(filled, node=both, group="node")
    assert [(one["node"], one["value"], one["low"], one["high"]) for one in each] == [
        ("beta", 300, 300, 300),
        ("alpha", 60, 60, 60),
    ]
    listed = ask(filled, node=both, instance="p[?]")
    assert sorted((one["node"], one["instance"]) for one in listed) == [
        (node, f"p[{i}]") for node in ("alpha", "beta") for i in range(3)
    ]
    same = ask(filled, node=both, group="instance")
    assert [(one["instance"], one["members"]) for one in same] == [("p[2]", 2), ("p[1]", 2), ("p[0]", 2)]
    for one, truth in zip(same, (130, 120, 110), strict=True):
        assert one["low"] <= truth <= one["high"]
    for group, text in (("name", "p[*]"), ("pattern", "p*")):
        (one,) = ask(filled, node=both, group=group, instance="p*")
        assert (one["instance"], one["members"], one["node"], one["epochs"]) == (text, 6, None, 20)
        assert one["value"] == pytest.approx(360, rel=1e-3)  # all that there is: known but for the decoder's slack


def test_a_question_about_too_many_streams_is_refused(tmp_path: Path) -> None:
    for unit in running_unit(tmp_path / "data", replace(LIMITS, query_streams=1)):
        for node in ("alpha", "beta"):
            unit.store.announce(StreamRecord(node, "disk", "disk_io", "operations", "process"))
        with unit.client("viewer") as client:
            body = {"metric": "disk_io", "node": ["alpha", "beta"], "from_ns": 0}
            response = client.post("/api/v1/query", json=body)
        assert (response.status_code, response.json()["detail"]) == (
            400,
            "query: 2 streams, the limit is 1; ask fewer nodes",
        )


def test_nodes_with_a_tag_are_added_up(filled: Unit) -> None:
    with filled.client("admin") as client:
        for node in ("alpha", "beta"):
            client.put(f"/api/v1/nodes/{node}/tags", json={"tags": ["east"]})
    (answer,) = ask(filled, node=None, tag="east")
    assert (answer["value"], answer["epochs"]) == (360, 20)
    (one,) = ask(filled, node=None, tag="east", instance="p[0]")
    assert one["low"] <= 110 <= one["high"]


def test_an_unknown_instance_and_an_empty_range_have_reasons(filled: Unit) -> None:
    assert ask(filled, instance="nobody[1]")[0]["reason"] == "unknown instance"
    assert ask(filled, instance="p")[0]["notes"] == ["seen in the range: p[0], p[1], p[2]"]
    assert "p[2]" in ask(filled, instance="p[22]")[0]["notes"][0]
    assert ask(filled, from_ns=20 * SECOND, to_ns=30 * SECOND)[0]["reason"] == "no epochs in range"


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ({"node": "nobody"}, "no stream"),
        ({"metric": "cpu"}, "no stream"),
        ({"node": ["alpha", "nobody"]}, "node nobody has no stream"),
        ({"tag": "east"}, "nodes or one tag"),
        ({"node": None}, "nodes or one tag"),
        ({"node": None, "tag": "nowhere"}, "any node tagged nowhere has no stream"),
        ({"from_ns": 5, "to_ns": 4}, "ends before it begins"),
        ({"top": 3, "instance": "p[1]"}, "not both"),
        ({"group": "name", "instance": "p[1]"}, "not both"),
        ({"group": "name", "method": "literal"}, "decoded jointly"),
        ({"group": "port", "to_ns": 10**12}, "has no port; group processes by name"),
        ({"instance": "1.2.3.4:99999 > 1.2.3.5:1 tcp"}, "write"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_questions_that_cannot_be_answered_are_refused(filled: Unit, question: dict, word: str) -> None:
    body = {"metric": "disk_io", "node": "alpha", "from_ns": 0, "to_ns": 10, "live": False, **question}
    with filled.client("viewer") as client:
        response = client.post("/api/v1/query", json=body)
    assert response.status_code == 400
    assert word in response.json()["detail"]


@pytest.mark.parametrize(
    "question", [{"node": []}, {"node": ["n"] * 101}, {"instance": "*" * 513}, {"instance": ""}, {"group": "mood"}]
)
def test_questions_beyond_the_limits_are_not_as_described(filled: Unit, question: dict) -> None:
    with filled.client("viewer") as client:
        response = client.post("/api/v1/query", json={"metric": "disk_io", "node": "alpha", "from_ns": 0, **question})
    assert response.status_code == 422


def test_the_current_epoch_is_asked_for_and_added_once(filled: Unit) -> None:
    stored = make_epoch(9, time_ns=10 * SECOND, values=(1, 2, 3))
    current = make_epoch(10, time_ns=11 * SECOND, values=(100, 0, 0))

    def hand_over(transport: HttpTransport, asked: Asked) -> None:
        assert asked.streams == ("disk",)
        transport.answer(asked, [encode(stored), encode(current)])

    with answering(filled, hand_over):
        (answer,) = ask(filled, live=True)
    assert (answer["value"], answer["live"], answer["epochs"]) == (160, True, 11)


def test_an_epoch_that_is_sent_while_its_node_is_asked_is_not_missed(filled: Unit) -> None:
    def send_then_answer(transport: HttpTransport, asked: Asked) -> None:
        transport.send([encode(make_epoch(10, time_ns=11 * SECOND, values=(100, 0, 0)))])
        transport.answer(asked, [])

    with answering(filled, send_then_answer):
        (answer,) = ask(filled, live=True)
    assert (answer["value"], answer["epochs"]) == (160, 11)


@pytest.mark.parametrize("unsent", [0, 1])
def test_a_range_that_has_ended_is_live_only_with_epochs_that_were_not_sent(filled: Unit, unsent: int) -> None:
    def hand_over(transport: HttpTransport, asked: Asked) -> None:
        assert (asked.from_ns, asked.to_ns) == (0, 10**12)
        transport.answer(asked, [encode(make_epoch(10, time_ns=11 * SECOND))] * unsent)

    with answering(filled, hand_over):
        (answer,) = ask(filled, live=True)
    assert (answer["live"], answer["epochs"], answer["notes"]) == (bool(unsent), 10 + unsent, [])


def test_a_silent_node_is_named_and_the_stored_part_answered(filled: Unit) -> None:
    (answer,) = ask(filled, live=True)
    assert answer["value"] == 60
    assert answer["live"] is False
    assert "alpha" in answer["notes"][0]


def test_an_answer_nobody_waits_for_is_refused(filled: Unit) -> None:
    with filled.client("alpha") as client:
        response = client.post("/api/v1/nodes/alpha/requests/0123", content=encode(make_epoch(10)))
    assert response.status_code == 404


def test_ranges_that_cut_epochs(unit: Unit) -> None:
    epoch = make_epoch(0, time_ns=0, values=(0,))
    sketch = epoch.sketch.copy()
    from sojourn.core.keys import ProcessKey, key_id
    from sojourn.epochs.epoch import Epoch

    for second in range(1, 11):
        sketch.record(key_id(ProcessKey("p", 0)), 6, second * SECOND)
    whole = Epoch("alpha", "disk", 0, sketch, (ProcessKey("p", 0),))
    transport = HttpTransport(unit.url, unit.tokens["alpha"], node="alpha")
    transport.announce(Announcement("disk", "disk_io", "operations", "process"))
    transport.send([encode(whole)])
    transport.close()
    cut = {"from_ns": 0, "to_ns": 5 * SECOND}
    assert ask(unit, **cut)[0]["value"] == 60
    assert ask(unit, **cut, cut="inside")[0]["reason"] == "no epochs in range"
    (part,) = ask(unit, **cut, cut="pro-rata")
    assert part["value"] == pytest.approx(30)
    assert (part["low"], part["high"]) == (0, 60)
    assert part["covered"] == [{"from_ns": 0, "to_ns": 5 * SECOND}]
    (one,) = ask(unit, **cut, cut="pro-rata", instance="p[0]")
    assert one["low"] <= 30 <= one["high"]
    assert np.isclose(one["value"], 30, rtol=0.2)
