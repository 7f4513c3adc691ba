"""A query unit with too much to do: what is refused before it costs memory, what waits, what is ended."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from query_unit import Unit, make_epoch, running_unit

from sojourn.client.query_unit import Client
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.node.transports.transport import TransportError
from sojourn.server.door.limits import BusyError, IngestDesk, Limits
from sojourn.server.queries.live import LiveDesk
from sojourn.server.queries.workers import QueryWorkers, TooLongError
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import StreamRecord
from waiting import PATIENCE_SECONDS, eventually

GENEROUS = {"requests_per_second": 10_000, "burst": 10_000}
Result = TypeVar("Result")


def narrow_epoch(sequence: int, *, buckets: int = 64, salt: int = 0) -> Epoch:
    """An epoch of one-bit counters, which take 64 times their bytes once they are decoded."""
    sketch = BucketArray(BucketArrayParameters(buckets=buckets, per_instance=1, bits=1, count_bits=1, salt=salt))
    sketch.record(key_id(ProcessKey("p", 1)), 1, 10**9 + sequence)
    return Epoch("alpha", "disk", sequence, sketch, (ProcessKey("p", 1),))


DECODED = narrow_epoch(0).parameters.decoded_bytes


@contextmanager
def unit_with(directory: Path, **limits: Any) -> Iterator[Unit]:
    running = running_unit(directory, Limits(**GENEROUS, **limits))
    unit = next(running)
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    yield unit
    next(running, None)


def ask(unit: Unit, **question: object) -> Any:
    with unit.client("viewer") as client:
        asked = {"metric": "disk_io", "node": "alpha", "from_ns": 0, "live": False, **question}
        return client.post("/api/v1/query", json=asked)


def test_counters_that_would_take_too_much_memory_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    one, three = encode(narrow_epoch(0)), b"".join(encode(narrow_epoch(i)) for i in range(3))
    with unit_with(tmp_path / "a", epoch_decoded_bytes=DECODED - 1) as unit, unit.client("alpha") as alpha:
        refused = alpha.post("/api/v1/epochs", content=one)
        assert (refused.status_code, "record with fewer counters" in refused.json()["detail"]) == (413, True)
    with unit_with(tmp_path / "b", request_decoded_bytes=2 * DECODED) as unit, unit.client("alpha") as alpha:
        refused = alpha.post("/api/v1/epochs", content=three)
        assert (refused.status_code, "send fewer at a time" in refused.json()["detail"]) == (413, True)
        assert alpha.post("/api/v1/epochs", content=one).status_code == 200
        assert unit.store.totals()["epochs"] == 1


def test_more_keys_than_a_request_may_have_are_refused(tmp_path: Path) -> None:
    with unit_with(tmp_path, request_keys=3) as unit, unit.client("alpha") as alpha:
        assert alpha.post("/api/v1/epochs", content=encode(make_epoch(values=(1, 2, 3)))).status_code == 200
        assert alpha.post("/api/v1/epochs", content=encode(make_epoch(1, values=(1, 2, 3, 4)))).status_code == 413


def test_a_query_is_bounded_by_the_counters_that_cannot_be_added_up(tmp_path: Path) -> None:
    """Epochs of one salt are added up as they are read, so that their number does not matter; others are not."""
    with unit_with(tmp_path, query_decoded_bytes=2 * DECODED) as unit:
        unit.store.add([narrow_epoch(i) for i in range(5)])
        answer = ask(unit, instance="p[1]")
        assert answer.status_code == 200, answer.text
        assert (round(answer.json()[0]["value"], 6), answer.json()[0]["epochs"]) == (5, 5)
        unit.store.add([narrow_epoch(i, salt=i) for i in range(10, 15)])
        for method in ("joint", "literal"):
            refused = ask(unit, instance="p[1]", method=method)
            assert (refused.status_code, "a shorter range, or for one node" in refused.json()["detail"]) == (400, True)
        assert ask(unit, instance="p[1]", from_ns=10**9 + 10, to_ns=10**9 + 11).json()[0]["value"] == pytest.approx(2)
        assert ask(unit).json()[0]["value"] == 10  # a total needs one epoch at a time


def test_live_answers_share_one_limit() -> None:
    async def both() -> list[bool]:
        desk = LiveDesk(most_pending=10, most_bytes=1000, most_together=1000)

        async def node(name: str) -> None:
            request = await desk.next_request(name, PATIENCE_SECONDS)
            assert request is not None
            desk.answer(name, request.id, [], size_bytes=600, more=True)
            await asyncio.sleep(0)
            desk.answer(name, request.id, [], size_bytes=1, more=False)

        names = ("alpha", "beta")
        asked = [desk.ask(name, ("disk",), 0, 9, PATIENCE_SECONDS) for name in names]
        *replies, _, _ = await asyncio.gather(*asked, *map(node, names))
        return [reply is not None and reply.is_whole for reply in replies]

    assert sorted(asyncio.run(both())) == [False, True]


def test_a_caller_has_one_turn_at_a_time_and_does_not_delay_others() -> None:
    async def run() -> None:
        desk = IngestDesk(Limits(ingest_wait_seconds=0.1))
        async with desk.turn("alpha"):
            async with desk.turn("beta"):
                pass
            with pytest.raises(BusyError, match="send less at a time"):
                async with desk.turn("alpha"):
                    pass
        async with desk.turn("alpha"):
            assert await desk.run(max, 1, 2) == 2

    asyncio.run(run())


def with_workers(work: Coroutine[Any, Any, Result], workers: QueryWorkers) -> Result:
    try:
        return asyncio.run(work)
    finally:
        workers.close()


def test_a_query_that_takes_too_long_is_ended_and_the_next_one_answered() -> None:
    workers = QueryWorkers(Limits(query_workers=1, query_seconds=2.0, query_wait_seconds=PATIENCE_SECONDS))

    async def run() -> int:
        assert await workers.call(abs, -2) == 2
        (first,) = workers.pids
        with pytest.raises(TooLongError, match=r"took more than 2 s; ask for a shorter range"):
            await workers.call(time.sleep, 600)
        eventually(lambda: not os.path.exists(f"/proc/{first}"))
        return await workers.call(abs, -3)

    assert with_workers(run(), workers) == 3


def test_a_query_whose_asker_has_gone_is_ended() -> None:
    workers = QueryWorkers(Limits(query_workers=1, query_seconds=600, query_wait_seconds=PATIENCE_SECONDS))

    async def run() -> int:
        await workers.call(abs, -2)
        (first,) = workers.pids
        asked = asyncio.create_task(workers.call(time.sleep, 600))
        await asyncio.sleep(0.1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.to_thread(eventually, lambda: not os.path.exists(f"/proc/{first}"))
        return await workers.call(abs, -3)

    assert with_workers(run(), workers) == 3


def test_queries_wait_for_a_worker_and_beyond_the_queue_are_turned_away() -> None:
    workers = QueryWorkers(Limits(query_workers=1, query_waiting=1, query_wait_seconds=PATIENCE_SECONDS))

    async def run() -> list[object]:
        await workers.call(abs, -2)
        calls = [workers.call(time.sleep, 0.3), workers.call(abs, -3), workers.call(abs, -4)]
        return await asyncio.gather(*calls, return_exceptions=True)

    slept, waited, refused = with_workers(run(), workers)
    assert (slept, waited) == (None, 3)
    assert isinstance(refused, BusyError)


def test_who_is_turned_away_learns_when_to_come_again(tmp_path: Path) -> None:
    with unit_with(tmp_path, query_waiting=0) as unit:
        unit.store.add([make_epoch()])
        refused = ask(unit)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")


def test_nodes_and_health_do_not_wait_for_queries(tmp_path: Path) -> None:
    """More queries than there are threads for everything else, each longer than it may take."""
    keys = tuple(ProcessKey(f"p{i}", i) for i in range(4000))
    with unit_with(tmp_path, query_seconds=1.0, query_wait_seconds=2.0) as unit:
        for salt in range(3):
            sketch = BucketArray(BucketArrayParameters(buckets=1500, per_instance=3, bits=32, count_bits=16, salt=salt))
            for value, key in enumerate(keys):
                sketch.record(key_id(key), value, 10**9)
            unit.store.add([Epoch("alpha", "disk", salt, sketch, keys)])
        statuses: list[int] = []
        askers = [threading.Thread(target=lambda: statuses.append(ask(unit, top=1000).status_code)) for _ in range(60)]
        for asker in askers:
            asker.start()
        with unit.client("beta") as beta, unit.client(None) as anyone:
            answered = 0
            while any(asker.is_alive() for asker in askers):
                assert anyone.get("/health").status_code == 200
                assert beta.post("/api/v1/epochs", content=encode(make_epoch(answered, node="beta"))).status_code == 200
                answered += 1
        for asker in askers:
            asker.join()
        assert answered > 1  # while queries were under way
        assert set(statuses) <= {200, 400, 503, 504}  # answered, or ended by whichever limit it met first
        assert 503 in statuses


def test_a_client_that_waited_in_vain_says_so_and_what_to_narrow() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(address, "token", timeout_seconds=0.2) as client,
            pytest.raises(
                TransportError, match=r"did not answer within 0.2 s: it may still be computing; narrow --from"
            ),
        ):
            client.query(metric="cpu", from_ns=0)
    with Client(address, "token") as client, pytest.raises(TransportError, match="is it running"):
        client.query(metric="cpu", from_ns=0)
