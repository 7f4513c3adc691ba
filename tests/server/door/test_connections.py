"""Whoever opens connections and says nothing keeps nobody out; whoever is slow but honest goes on."""

from __future__ import annotations

import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from query_unit import LIMITS, Unit, make_epoch, running_unit

from sojourn.epochs.wire import encode
from sojourn.server.door import connections
from sojourn.server.door.connections import Door, Phase, most_connections
from waiting import PATIENCE_SECONDS, eventually

MOST = 40


@contextmanager
def unit_at_a_door(directory: Path, most: int = MOST, **options) -> Iterator[tuple[Unit, Door]]:
    door = Door("127.0.0.1", 0, most=most)
    running = running_unit(directory, LIMITS, listening=door, **options)
    yield next(running), door
    next(running, None)


def connected(unit: Unit) -> socket.socket:
    host, port = unit.url.rpartition("//")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def silent(unit: Unit, count: int, first: bytes = b"") -> ExitStack:
    """Connections that say so much, and then nothing; closed with the stack."""
    stack = ExitStack()
    for _ in range(count):
        connection = stack.enter_context(connected(unit))
        with suppress(OSError):  # it may have made room already
            connection.sendall(first)
            if b"\r\n\r\n" in first:
                connection.recv(1)  # it is answered, so nothing is at work for it any more
    return stack


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionError:
        return True


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    paths = tmp_path / "unit.pem", tmp_path / "unit.key"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=unit"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run([*request, *names], check=True, capture_output=True)
    return paths


def test_answers_do_not_wait_for_more_to_send(tmp_path: Path) -> None:
    """With Nagle's algorithm on, an answer's body waits for the acknowledgement of its head: 40 ms for each request."""
    with unit_at_a_door(tmp_path) as (unit, door), unit.client() as client:
        assert client.get("/health").status_code == 200
        (connection,) = door._open.values()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"GET /health HTTP/1.1\r\nX: ",
        b"POST /api/v1/epochs HTTP/1.1\r\nContent-Length: 1000000\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["silent", "half a head", "no body", "idle"],
)
def test_half_open_and_idle_connections_make_room_for_honest_ones(tmp_path: Path, first: bytes) -> None:
    with unit_at_a_door(tmp_path) as (unit, door), silent(unit, 3 * MOST, first):
        for _ in range(10):
            with unit.client("viewer") as client:
                assert client.get("/api/v1/nodes").status_code == 200
        assert door.count <= MOST + connections.MOST_CLOSING


def test_one_address_does_not_take_all_connections(tmp_path: Path) -> None:
    with unit_at_a_door(tmp_path) as (unit, door), silent(unit, 3 * MOST):
        eventually(lambda: 0 < door.count <= MOST * connections.SHARE_OF_AN_ADDRESS)


def test_a_long_poll_outlives_a_flood(tmp_path: Path) -> None:
    answers: list[int] = []

    def wait(unit: Unit) -> None:
        with unit.client("alpha") as client:
            answers.append(client.get("/api/v1/nodes/alpha/requests", params={"wait": 3}).status_code)

    with unit_at_a_door(tmp_path) as (unit, door):
        thread = threading.Thread(target=wait, args=(unit,))
        thread.start()
        eventually(lambda: any(one.phase is Phase.WORKING for one in list(door._open.values())), pause=0.01)
        with silent(unit, 3 * MOST), silent(unit, 3 * MOST, b"GET "):
            thread.join(PATIENCE_SECONDS)
    assert answers == [204]


def test_handshakes_of_tls_that_do_not_begin_make_room(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    how = {"certificate": certificate[0], "private_key": certificate[1]}
    with unit_at_a_door(tmp_path / "data", **how) as (unit, _door), silent(unit, 3 * MOST):
        url = unit.url.replace("http:", "https:")
        trusting = ssl.create_default_context(cafile=certificate[0])
        with httpx.Client(base_url=url, verify=trusting, timeout=PATIENCE_SECONDS) as client:
            assert client.get("/health").status_code == 200


def test_handshakes_heads_and_bodies_have_their_time(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.SECONDS, Phase.OPENING, 0.2)
    monkeypatch.setitem(connections.SECONDS, Phase.BODY, 0.2)
    monkeypatch.setattr(connections, "BODY_GRACE_SECONDS", 0.2)
    how = {"certificate": certificate[0], "private_key": certificate[1]}
    with unit_at_a_door(tmp_path / "tls", **how) as (unit, _door), connected(unit) as connection:
        assert is_closed(connection)
    with unit_at_a_door(tmp_path / "plain") as (unit, _door):
        body = f"POST /api/v1/epochs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {unit.tokens['alpha']}\r\n"
        for first in (b"", b"GET /hea", body.encode() + b"Content-Length: 900\r\n\r\nx"):
            with connected(unit) as connection:
                connection.sendall(first)
                assert is_closed(connection)


def test_a_slow_body_that_is_fast_enough_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is long over, by the grace alone; each byte gives it more than the next one takes."""
    monkeypatch.setitem(connections.SECONDS, Phase.BODY, 0.05)
    monkeypatch.setattr(connections, "BODY_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(connections, "SLOWEST_BYTES_PER_SECOND", 0.01)
    data = encode(make_epoch())

    def slowly() -> Iterator[bytes]:
        for start in range(0, len(data), 40):
            swept.wait(PATIENCE_SECONDS)
            swept.clear()
            yield data[start : start + 40]

    swept = threading.Event()
    with unit_at_a_door(tmp_path) as (unit, door), unit.client("alpha") as client:
        sweep = door.sweep

        def then_tell() -> None:
            sweep()
            swept.set()

        monkeypatch.setattr(door, "sweep", then_tell)
        headers = {"Content-Length": str(len(data))}
        assert client.post("/api/v1/epochs", content=slowly(), headers=headers).status_code == 200


PROGRAM = """
import resource, sys
from sojourn.core.errors import log_to_stderr
from sojourn.store.epochs import open_store
from sojourn.server.door.connections import Door
from sojourn.server.options import ServeOptions
from sojourn.server.serving import make_server
log_to_stderr()
store = open_store(sys.argv[1])
door = Door("127.0.0.1", 0, most=10_000)
server = make_server(store, door, ServeOptions(data=sys.argv[1], graceful_seconds=1))
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
print(door.getsockname()[1], flush=True)
server.run(sockets=[door])
"""


def test_running_out_of_descriptors_ends_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        unit = Unit(f"http://127.0.0.1:{program.stdout.readline().strip()}", None, {})
        _ask_health(unit)
        with silent(unit, 300):
            for _ in range(5):
                _ask_health(unit)
        program.terminate()
        _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert "raise the limit of open files" in errors
    assert "Traceback" not in errors
    assert len(errors.splitlines()) < 20


def _ask_health(unit: Unit) -> None:
    """Until it answers: a connection that came while there was no descriptor is refused."""

    def answers() -> bool:
        try:
            return httpx.get(f"{unit.url}/health", timeout=PATIENCE_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    eventually(answers)


def test_the_limit_follows_from_what_the_process_may_open() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 1 <= most_connections() <= min(soft, connections.MOST_CONNECTIONS)
