"""The client of a query unit: what it says of one of an earlier version."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from false_front import answer, false_front, listening_socket
from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError

CALLS: dict[str, Callable[[Client], object]] = {
    "create": lambda client: client.create_segment("ab", "a:e", "b:e"),
    "list": lambda client: client.segments(),
    "show": lambda client: client.segment("ab"),
    "remove": lambda client: client.remove_segment("ab"),
    "query": lambda client: client.query_segment("ab", from_ns=0),
    "measurements": lambda client: client.measurements(0, 5),
    "add": lambda client: client.add_measurements([]),
}


def said(call: str, status: str, body: object) -> str:
    """What a call raises when a query unit answers so."""
    words = answer(status, json.dumps(body).encode())
    with listening_socket() as listening, false_front(listening, [words]):
        client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}", "token")
        with client, pytest.raises(ServerError) as raised:
            CALLS[call](client)
    return str(raised.value)


@pytest.mark.parametrize(
    ("call", "status", "body"),
    [
        ("create", "422 Unprocessable Entity", {"detail": "body.measurements: Field required; body.name: Extra"}),
        ("list", "200 OK", {"measurements": []}),
        ("show", "404 Not Found", {"detail": "Not Found"}),
        ("remove", "404 Not Found", {"detail": "Not Found"}),
        ("query", "404 Not Found", {"detail": "Not Found"}),
        ("measurements", "404 Not Found", {"detail": "Not Found"}),
        ("add", "404 Not Found", {"detail": "Not Found"}),
        ("add", "405 Method Not Allowed", {"detail": "Method Not Allowed"}),
    ],
)
def test_an_earlier_query_unit_is_to_be_upgraded(call: str, status: str, body: object) -> None:
    assert "the query unit is of an earlier version, which does not know this; upgrade it" in said(call, status, body)


@pytest.mark.parametrize(
    ("call", "status", "detail"),
    [
        ("show", "404 Not Found", "there is no segment ab; sojourn segment list shows all"),
        ("create", "422 Unprocessable Entity", "body.epoch_ns: Input should be a valid integer"),
        ("create", "403 Forbidden", "this needs the role admin"),
    ],
)
def test_other_refusals_are_passed_on(call: str, status: str, detail: str) -> None:
    assert detail in said(call, status, {"detail": detail})
