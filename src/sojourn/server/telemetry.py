"""What the query unit reports of itself: whether it works, and counters for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn import __version__
from sojourn.core.errors import SojournError
from sojourn.server.door.access import problems, readers
from sojourn.server.models import Health, Readiness
from sojourn.store.tokens import Token

MOST_REASON = 300
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STORED = {
    "epochs": "Epochs stored",
    "epoch_bytes": "Bytes of epochs stored",
    "epochs_set_aside": "Epochs stored that cannot be decoded",
    "nodes": "Nodes known",
    "instances": "Keys in the directory",
    "collections": "Collections of sinks",
    "packets": "Packets of sinks stored",
    "windows": "Windows of collections solved, ever",
}


Count = tuple[str, Sequence[str], float]  # the name of a counter, its labels, and how much more


class Telemetry:
    """Counters of one application."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sojourn_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"sojourn_{name}_seconds", text, registry=registry)

        self.requests = counter("requests", "Requests answered", "method", "status")
        self.messages = counter("messages", "Messages of nodes that came by MQTT", "what", "status")
        self.messages_ignored = counter("messages_ignored", "Messages that came by MQTT and were no node's", "reason")
        self.broker = Gauge("sojourn_broker_connected", "Whether the MQTT broker is connected", registry=registry)
        self.epochs = counter("epochs_received", "Epochs received", "status")
        self.quota_refusals = counter("quota_refusals", "What nodes sent that was beyond a quota", "quota")
        self.epochs_removed = counter("epochs_removed", "Epochs removed because they were old")
        self.epochs_merged = counter("epochs_merged", "Epochs merged into others because they were old")
        paused = "Whether nothing is removed or merged, because the clock is in doubt"
        self.retention_paused = Gauge("sojourn_retention_paused", paused, registry=registry)
        self.query_seconds = seconds("query", "Time to answer a query")
        self.packets = counter("packets_received", "Packets of sinks received", "status")
        self.packets_solved = counter("packets_solved", "Packets whose hops were found")
        self.packets_set_aside = counter("packets_set_aside", "Packets whose window took too much to solve")
        self.window_seconds = seconds("window", "Time to solve a window of a collection")
        # What processes beside the planning one count, too.
        self._everywhere = {
            "requests": self.requests,
            "messages": self.messages,
            "messages_ignored": self.messages_ignored,
            "epochs": self.epochs,
            "quota_refusals": self.quota_refusals,
        }
        self._reported: dict[tuple[str, tuple[str, ...]], float] = {}
        self._stored = {name: Gauge(f"sojourn_stored_{name}", _STORED[name], registry=registry) for name in _STORED}

    def take_counts(self) -> list[Count]:
        """What was counted here since the last time, for the process that adds it up."""
        taken: list[Count] = []
        for name, counter in self._everywhere.items():
            for sample in (one for metric in counter.collect() for one in metric.samples):
                labels = tuple(sample.labels.values())
                more = sample.value - self._reported.get((name, labels), 0.0)
                if sample.name.endswith("_total") and more:
                    self._reported[name, labels] = sample.value
                    taken.append((name, labels, more))
        return taken

    def add_counts(self, counts: Iterable[Count]) -> None:
        """Add what another process has counted."""
        for name, labels, more in counts:
            self._everywhere[name].labels(*labels).inc(more)

    def render(self, totals: dict[str, int]) -> bytes:
        """All counters in Prometheus' text format, with what the store holds now."""
        for name, value in totals.items():
            self._stored[name].set(value)
        return generate_latest(self._registry)


class RequestCounter:
    """Middleware that counts every request by its method and the answer's status, and passes all else on untouched."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._telemetry.requests.labels(scope["method"][:10], str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


router = APIRouter(tags=["status"])


@router.get("/health", responses=problems(503))
async def health(request: Request) -> Health:
    """Whether the query unit and its store work; needs no token, and takes the same time however much is stored."""
    state = request.app.state
    await asyncio.get_running_loop().run_in_executor(state.desk, state.store.check)
    return Health(status="ok", version=__version__)


@router.get("/health/live")
async def live(_request: Request) -> Health:
    """Whether the process answers at all: if not, it is to be started again. Needs no token, and no store."""
    return Health(status="ok", version=__version__)


@router.get("/health/ready", responses={503: {"model": Readiness, "description": "not ready, and why"}})
async def ready(request: Request) -> Response:
    """Whether it takes what nodes send: the store answers, the broker (if any) is connected, and it does not end.

    Where processes of their own take epochs, it speaks of all of them.
    """
    state = request.app.state
    checks = {"store": "ok", "requests": "ending" if state.ending else "ok"}
    try:
        await asyncio.get_running_loop().run_in_executor(state.desk, state.store.check)
    except SojournError as error:
        checks["store"] = str(error)[:MOST_REASON]
    if state.processes is not None:
        checks["workers"] = state.processes.check()
    if state.is_at_broker is not None:
        checks["broker"] = "ok" if state.is_at_broker() else "not connected"
    is_ready = set(checks.values()) == {"ok"}
    said = Readiness(status="ready" if is_ready else "not ready", checks=checks, version=__version__)
    return Response(said.model_dump_json(), 200 if is_ready else 503, media_type="application/json")


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **problems(401, 403, 429)}
)
def metrics(request: Request, _token: Annotated[Token, readers]) -> Response:
    """Counters in Prometheus' text format."""
    state = request.app.state
    if state.is_at_broker is not None:
        state.telemetry.broker.set(state.is_at_broker())
    return Response(state.telemetry.render(state.store.totals() | state.sinks.totals()), media_type=MEDIA_TYPE)
