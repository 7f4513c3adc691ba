"""What the query unit counts about itself, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["MEDIA_TYPE", "RequestCounter", "Telemetry"]

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


class Telemetry:
    """Counters of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("sojourn_requests", "Requests answered", ["method", "status"], registry=self._registry)
        self.epochs = Counter("sojourn_epochs_received", "Epochs received", ["status"], registry=self._registry)
        self.epochs_removed = Counter(
            "sojourn_epochs_removed", "Epochs removed because they were old", registry=self._registry
        )
        self.query_seconds = Histogram("sojourn_query_seconds", "Time to answer a query", registry=self._registry)
        self.packets = Counter(
            "sojourn_packets_received", "Packets of sinks received", ["status"], registry=self._registry
        )
        self.packets_solved = Counter(
            "sojourn_packets_solved", "Packets whose hops were found", registry=self._registry
        )
        self.packets_set_aside = Counter(
            "sojourn_packets_set_aside", "Packets whose window took too much to solve", registry=self._registry
        )
        self.window_seconds = Histogram(
            "sojourn_window_seconds", "Time to solve a window of a collection", registry=self._registry
        )
        self._stored = {
            name: Gauge(f"sojourn_stored_{name}", text, registry=self._registry) for name, text in _STORED.items()
        }

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
