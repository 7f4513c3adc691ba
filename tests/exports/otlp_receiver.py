"""An OTLP/HTTP receiver: takes metrics as the protocol has them, and decodes them with its own schema."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

__all__ = ["Receiver", "otlp_receiver"]


class Receiver:
    """What came, and how the next request is answered."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.rejected = 0
        self.answer: bytes | None = None
        self.was_cut_short = False  # the last answer was not read to its end
        self.url = ""

    def metrics(self) -> dict[str, Metric]:
        """The metrics of the last request, by name."""
        (resource,) = self.requests[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A receiver on loopback as long as the block runs."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path != "/v1/metrics" or self.headers["Content-Type"] != "application/x-protobuf":
                self.send_error(404)
                return
            receiver.headers.append(dict(self.headers))
            receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
            partial = ExportMetricsPartialSuccess(rejected_data_points=receiver.rejected, error_message="too old")
            answer = ExportMetricsServiceResponse(partial_success=partial) if receiver.rejected else None
            body = receiver.answer or (answer or ExportMetricsServiceResponse()).SerializeToString()
            self.send_response(receiver.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            receiver.was_cut_short = False
            try:
                self.wfile.write(body)
            except ConnectionError:  # who has read enough goes
                receiver.was_cut_short = True

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
