"""How pages ask: the query unit's own interface, in this process, with the viewer's token.

Guarantee: a page is answered exactly as any other client with that token would be, by the same gate, roles, limits and
workers; there is no second way to what is stored. Questions of a page that has gone are cancelled after
`GRACE_SECONDS`, and so is their work.
Cost: a millisecond for each question, beside what answering it takes.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import httpx
from starlette.types import ASGIApp

from sojourn.core.errors import ServerError
from sojourn.web.pages.sessions import Session

SECONDS = 90.0
GRACE_SECONDS = 3.0
LARGE_BYTES = 200_000  # of an answer that others would wait for while it is parsed


class RefusedError(ServerError):
    """The interface refused a question, with a status and one line of why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Unit:
    """A query unit as one viewer may use it."""

    def __init__(self, app: ASGIApp, session: Session, host: str) -> None:
        self.session = session
        transport = httpx.ASGITransport(app=app, client=(host, 0))
        bearer = {"Authorization": f"Bearer {session.text}"}
        self._client = httpx.AsyncClient(transport=transport, base_url="http://unit", headers=bearer)

    async def get(self, path: str, **params: Any) -> Any:
        """What a GET answers; parameters of None are left out."""
        return await self._ask("GET", path, params={name: one for name, one in params.items() if one is not None})

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """What a POST of JSON answers; fields of None are left out."""
        return await self._ask("POST", path, json={name: one for name, one in body.items() if one is not None})

    async def _ask(self, method: str, path: str, **how: Any) -> Any:
        task = asyncio.create_task(self._client.request(method, path, **how))
        try:
            answer = await asyncio.wait_for(asyncio.shield(task), SECONDS)
        except TimeoutError:
            task.cancel()
            raise RefusedError(504, f"there was no answer within {SECONDS:.0f} s") from None
        except asyncio.CancelledError:
            # Ending a question ends the process that works on it: one that is almost done is cheaper to wait for.
            asyncio.get_running_loop().call_later(GRACE_SECONDS, task.cancel)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        except ValueError as error:  # a text that no request can carry
            raise RefusedError(422, str(error)[:200]) from None
        if answer.is_success:
            is_json = answer.headers.get("content-type", "").startswith("application/json")
            if is_json and len(answer.content) > LARGE_BYTES:
                return await asyncio.to_thread(answer.json)
            return answer.json() if is_json else answer.text
        raise RefusedError(answer.status_code, _detail(answer))


def named(path: str, *names: str) -> str:
    """A path of the interface with names in it.

    >>> named("/api/v1/segments/{}/query", "a b/c")
    '/api/v1/segments/a%20b%2Fc/query'
    """
    return path.format(*(quote(name, safe="") for name in names))


def _detail(answer: httpx.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"the query unit answered {answer.status_code}"
    return str(detail)
