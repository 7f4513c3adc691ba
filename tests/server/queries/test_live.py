"""The desk that passes questions to nodes: answers in parts, limits, nodes that fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from query_unit import make_epoch

from sojourn.server.models import LiveAsked
from sojourn.server.queries.live import LiveDesk, LiveReply

Answer = Callable[[LiveDesk, LiveAsked], None]


def asked(desk: LiveDesk, answer: Answer, *, seconds: float = 30.0) -> LiveReply | None:
    """What comes back when a node waits for a question and answers it."""

    async def both() -> LiveReply | None:
        async def node() -> None:
            request = await desk.next_request("alpha", 30)
            assert request is not None
            answer(desk, request)

        reply, _ = await asyncio.gather(desk.ask("alpha", ("disk",), 5, 9, seconds), node())
        return reply

    return asyncio.run(both())


def test_parts_are_put_together_and_what_comes_after_the_last_is_refused() -> None:
    def answer(desk: LiveDesk, request: LiveAsked) -> None:
        assert (request.streams, request.from_ns, request.to_ns) == (["disk"], 5, 9)
        assert desk.answer("alpha", request.id, [make_epoch(2)], size_bytes=10, more=True)
        assert not desk.answer("beta", request.id, [make_epoch(1)], size_bytes=10, more=True)
        assert desk.answer("alpha", request.id, [make_epoch(1)], size_bytes=10, more=False)
        assert not desk.answer("alpha", request.id, [make_epoch(0)], size_bytes=10, more=False)

    reply = asked(LiveDesk(most_pending=10, most_bytes=1000), answer)
    assert reply is not None
    assert [epoch.sequence for epoch in reply.epochs] == [2, 1]
    assert reply.is_whole


def test_an_answer_that_is_too_large_or_breaks_off_is_kept_as_far_as_it_came() -> None:
    def too_large(desk: LiveDesk, request: LiveAsked) -> None:
        assert desk.answer("alpha", request.id, [make_epoch(2)], size_bytes=600, more=True)
        assert desk.answer("alpha", request.id, [make_epoch(1)], size_bytes=600, more=True)
        assert not desk.answer("alpha", request.id, [make_epoch(0)], size_bytes=1, more=False)

    def breaks_off(desk: LiveDesk, request: LiveAsked) -> None:
        assert desk.answer("alpha", request.id, [make_epoch(2)], size_bytes=600, more=True)

    for answer, seconds in ((too_large, 30.0), (breaks_off, 0.2)):
        reply = asked(LiveDesk(most_pending=10, most_bytes=1000), answer, seconds=seconds)
        assert reply is not None
        assert [epoch.sequence for epoch in reply.epochs] == [2]
        assert not reply.is_whole


def test_a_node_that_says_nothing_gives_no_answer() -> None:
    assert asked(LiveDesk(most_pending=10, most_bytes=1000), lambda *_: None, seconds=0.1) is None


def test_a_node_listens_while_it_answers_and_a_moment_after() -> None:
    now = [100.0]
    desk = LiveDesk(most_pending=10, most_bytes=1000, clock=lambda: now[0])
    assert not desk.is_listening("alpha")
    assert asyncio.run(desk.next_request("alpha", 0.01)) is None
    assert desk.is_listening("alpha")
    now[0] += 6
    assert not desk.is_listening("alpha")


def test_parts_without_end_are_not_waited_for_without_end() -> None:
    desk = LiveDesk(most_pending=1, most_bytes=1000)

    async def both() -> LiveReply | None:
        async def node() -> None:
            request = await desk.next_request("alpha", 30)
            assert request is not None
            assert desk.answer("alpha", request.id, [make_epoch(2)], size_bytes=10, more=True)
            while desk.answer("alpha", request.id, [], size_bytes=0, more=True):
                await asyncio.sleep(0.01)

        return (await asyncio.gather(desk.ask("alpha", ("disk",), 5, 9, 0.2), node()))[0]

    reply = asyncio.run(asyncio.wait_for(both(), 20))
    assert reply is not None
    assert [epoch.sequence for epoch in reply.epochs] == [2]
    assert not reply.is_whole
    assert asked(desk, _answer_at_once) is not None


def test_a_node_that_waits_again_before_its_answer_is_read_gets_the_next_request() -> None:
    desk = LiveDesk(most_pending=10, most_bytes=1000)

    async def node() -> None:
        request = await desk.next_request("alpha", 30)
        for _ in range(2):
            waiting = asyncio.create_task(desk.next_request("alpha", 2))
            await asyncio.sleep(0)
            assert request is not None
            _answer_at_once(desk, request)
            request = await waiting

    async def asker() -> None:
        for _ in range(2):
            assert await desk.ask("alpha", ("disk",), 5, 9, 2) is not None

    async def both() -> None:
        await asyncio.gather(node(), asker())

    asyncio.run(both())


def _answer_at_once(desk: LiveDesk, request: LiveAsked) -> None:
    assert desk.answer("alpha", request.id, [], size_bytes=0, more=False)


def test_a_ledgers_reply_is_handed_over_as_it_came_and_from_its_node_alone() -> None:
    async def both(size: int) -> bytes | None:
        desk = LiveDesk(most_pending=10, most_bytes=1000)

        async def node() -> None:
            request = await desk.next_request("alpha", 30)
            assert request is not None
            assert (request.streams, request.ledger) == (["point"], "question")
            assert desk.is_of_ledger(request.id)
            assert not desk.answer_of_ledger("beta", request.id, b"x")
            assert desk.answer_of_ledger("alpha", request.id, bytes(size)) == (size <= 1000)
            assert not desk.answer_of_ledger("alpha", request.id, b"x") or size > 1000

        reply, _ = await asyncio.gather(desk.ask_ledger("alpha", "point", "question", 0.3), node())
        return reply

    assert asyncio.run(both(100)) == bytes(100)
    assert asyncio.run(both(1001)) == b"x"
