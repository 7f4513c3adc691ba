"""A real Prometheus on loopback that scrapes a query unit, started by a test and ended by it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from waiting import PATIENCE_SECONDS, eventually

__all__ = ["Prometheus", "running_prometheus"]


class Prometheus:
    """A server's interface."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=PATIENCE_SECONDS)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression gives now; an error of Prometheus' fails the test."""
        answer = self._client.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        return answer["data"]["result"]

    def value(self, expression: str) -> float:
        """The only number that an expression gives."""
        (found,) = self.query(expression)
        return float(found["value"][1])

    def label_values(self, label: str, series: str) -> list[str]:
        """A label's values, as a variable of a dashboard asks for them."""
        return self._client.get(f"/api/v1/label/{label}/values", params={"match[]": series}).json()["data"]

    def targets(self) -> dict[str, tuple[str, str]]:
        """The health of each job's target, and what was wrong with it."""
        found = self._client.get("/api/v1/targets").json()["data"]["activeTargets"]
        return {one["scrapePool"]: (one["health"], one["lastError"]) for one in found}

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        self._client.close()


@contextmanager
def running_prometheus(directory: Path, unit: str, token: str, fleet: dict[str, list[str]]) -> Iterator[Prometheus]:
    """A server that scrapes both pages of a query unit every two seconds; `fleet` are the parameters of one of them."""
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("prometheus is missing and CI skips nothing")
        pytest.skip("prometheus is not installed")
    directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    common = {"authorization": {"credentials": token}, "static_configs": [{"targets": [unit.removeprefix("http://")]}]}
    jobs = [
        {"job_name": "unit", "metrics_path": "/metrics", **common},
        {"job_name": "fleet", "metrics_path": "/metrics/fleet", "params": fleet, **common},
    ]
    scraping = {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs}
    (directory / "prometheus.yml").write_text(json.dumps(scraping))  # YAML holds JSON
    command = [program, f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with open(directory / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        server = Prometheus(f"http://127.0.0.1:{port}")
        try:
            eventually(server.is_ready, (directory / "log").read_text)
            yield server
        finally:
            server.close()
            process.terminate()
