"""A segment between two nodes that go by pseudonyms: whoever has the key asks and is answered in clear."""

from __future__ import annotations

import pytest
from query_unit import Unit
from tests.segments.fleet.fleet_world import SECOND, truth_between
from tests.segments.fleet.test_answers import in_order
from tests.server.runs.test_segment_queries import (
    IN,
    OUT,
    answered,
    asked,
    create,
    epochs_of,
    send,
    span_of,
    text_of,
)

from sojourn.client.query_unit import Client
from sojourn.client.translation import Translation
from sojourn.core.errors import InputError
from sojourn.core.keys import key_id, parse_key
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.lab.two_point import LOST, TwoPointWorld, make_two_point_world
from sojourn.sources.pseudonym_columns import ColumnIds

PSEUDONYMS = Pseudonyms(bytes(range(32)))


def hidden(world: TwoPointWorld, *, pseudonyms: Pseudonyms = PSEUDONYMS) -> TwoPointWorld:
    """The world as nodes with a key record it."""
    ids = ColumnIds(pseudonyms, 1000)
    keys = {number: pseudonyms.key(key) for number, key in world.keys.items()}
    ids.learn([(number, key_id(key)) for number, key in keys.items()])
    named = {key_id(key): key for key in keys.values()}
    return TwoPointWorld(ids.renamed(world.sender), ids.renamed(world.receiver), world.delay_ns, named, world.seed)


@pytest.fixture(scope="module")
def world() -> TwoPointWorld:
    return in_order(make_two_point_world(seed=22, flows=30, packets=20_000, duration_ns=40 * SECOND, load=0.9))


def test_it_is_answered_as_in_clear(unit: Unit, world: TwoPointWorld) -> None:
    recorded = hidden(world)
    with Client(unit.url, unit.tokens["admin"]) as outside:
        create(outside)
        send(unit, epochs_of(recorded, recorded.sender, "alpha", OUT))
        send(unit, epochs_of(recorded, recorded.receiver, "beta", IN))
        answered(unit, 3)
        stranger = asked(outside)
    clear = {str(key) for key in world.keys.values()}
    assert not {text_of(row) for row in stranger} & clear
    with Client(unit.url, unit.tokens["viewer"], pseudonyms=Translation(PSEUDONYMS)) as client:
        result = asked(client)
        truth, delay = truth_between(world, *span_of(result))
        assert (result.aggregate["sent"], result.aggregate["lost"]) == (len(delay), int((delay == LOST).sum()))
        assert result.aggregate["mean_ns"] == pytest.approx(delay[delay != LOST].mean(), rel=0.02)
        sizes = {key_id(parse_key(text_of(row))): row["packets"] for row in result}
        assert sizes.keys() == set(truth.flow_id.tolist())
        for flow, sent in zip(truth.flow_id.tolist(), truth.sent.tolist(), strict=True):
            assert sizes[flow] == pytest.approx(sent, rel=0.02, abs=3)
        (row,) = asked(client, flows=[text_of(result[0])])
        assert (text_of(row), row["packets"]) == (text_of(result[0]), result[0]["packets"])
        assert sum(part["sent"] for part in asked(client, interval_ns=10 * SECOND).intervals) == len(delay)
        with pytest.raises(InputError, match="write 'SRC:PORT"):
            asked(client, flows=["10.0.0.1:80 > nowhere tcp"])


def test_two_keys_have_no_packet_in_common(world: TwoPointWorld) -> None:
    """So nothing is answered, rather than something that is wrong."""
    one, other = hidden(world), hidden(world, pseudonyms=Pseudonyms(bytes(32)))
    for mine, others in ((one, other), (one, world)):
        assert not set(mine.sender.packet_id.tolist()) & set(others.receiver.packet_id.tolist())
        assert not set(mine.sender.flow_id.tolist()) & set(others.receiver.flow_id.tolist())
    assert set(one.receiver.packet_id.tolist()) <= set(one.sender.packet_id.tolist())
