"""The description of the interface is true: requests made from it, good and bad, never end in a 5xx."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from query_unit import Unit, make_epoch
from schemathesis import GenerationMode

from sojourn.store.epochs import StreamRecord
from waiting import PATIENCE_SECONDS


@schemathesis.serializer("application/cbor", "application/x-ndjson")
def as_bytes(_context, value: object) -> bytes:
    """Whatever was generated, as the body's bytes."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def described(unit: Unit):
    """All operations of the interface, with some data behind them."""
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    unit.store.add([make_epoch(i) for i in range(3)])
    with unit.client("alpha") as client:
        packets = [{"origin": 1, "seq": k, "path": "1-0", "t0_s": k, "t_sink_s": k + 0.01} for k in range(3)]
        assert client.post("/api/v1/nodes/alpha/collections/field/packets", json=packets).status_code == 200
    schema = schemathesis.openapi.from_url(f"{unit.url}/openapi.json", timeout=PATIENCE_SECONDS)
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as described", "otherwise"])
def test_nothing_that_is_sent_makes_the_server_fail(shared_unit: Unit, mode: GenerationMode) -> None:
    operations = described(shared_unit)
    assert len(operations) > 21
    headers = {"Authorization": f"Bearer {shared_unit.tokens['admin']}"}
    for operation in operations:

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=10,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case) -> None:
            if case.path.endswith("/requests") and case.method == "GET":
                case.query = {**(case.query or {}), "wait": 0}
            response = case.call(headers=headers, timeout=PATIENCE_SECONDS)
            assert response.status_code < 500, (case.path, response.text)

        try:
            send()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, "an operation without parameters has nothing to get wrong"
