"""HTTP by the standard library: connections that are kept, shared by threads, and go through proxies."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sojourn.core.errors import UsageError
from sojourn.node.transports.connections import HttpConnections, Request
from sojourn.node.transports.exchange import connect, exchange
from sojourn.node.transports.transport import NoAnswerError, TransportError


class Answering(BaseHTTPRequestHandler):
    """Tells what it was asked, and by which connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        self.server.seen.append((self.client_address[1], self.path, dict(self.headers), body))
        if "empty" in self.path:
            self.send_response(204)
            self.end_headers()
            return
        if "chunked" in self.path:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (b"[1,", b" 2]"):
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        data = b'{"ok": true}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if "last" in self.path:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_GET  # noqa: N815 - the library's names

    def log_message(self, *_: object) -> None:
        """Nothing is said."""


@contextmanager
def answering() -> Iterator[tuple[str, list[tuple[int, str, dict[str, str], bytes]], ThreadingHTTPServer]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        server.seen = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.seen, server
        finally:
            server.shutdown()
            thread.join()


def get(connections: HttpConnections, path: str, method: str = "GET", **how) -> object:
    return exchange(connections, "here", method, path, seconds=5.0, most_bytes=10_000, may_be_empty=True, **how)


def test_a_connection_is_used_again_as_long_as_it_is_open() -> None:
    with answering() as (url, seen, _):
        connections = connect(url, "token")
        for path in ("/a", "/chunked", "/empty", "/b", "/last", "/c", "/d"):
            get(connections, path)
        connections.close()
    ports = [port for port, *_ in seen]
    assert len(set(ports[:5])) == 1
    assert len(set(ports[5:])) == 1
    assert ports[4] != ports[5]


def test_one_that_was_closed_meanwhile_is_not_used_and_nothing_is_lost() -> None:
    with answering() as (url, seen, _):
        connections = connect(url, "token")
        get(connections, "/a")
        (kept,) = connections._idle
        kept.sock.shutdown(socket.SHUT_RDWR)
        get(connections, "/b")
        assert [path for _, path, *_ in seen] == ["/a", "/b"]
        connections.close()


def test_threads_have_a_connection_each() -> None:
    with answering() as (url, seen, _):
        connections = connect(url, "token")
        threads = [
            threading.Thread(target=lambda: [get(connections, "/t") for _ in range(20)], daemon=True) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(seen) == 120
        assert len({port for port, *_ in seen}) <= 6
        connections.close()


def test_what_is_sent_is_what_was_given() -> None:
    with answering() as (url, seen, _):
        connections = connect(f"{url}/behind", "token")
        get(connections, "/api/a%2Fb ö", params={"on": True, "wait": 1.5, "node": ["x y", "z"], "none": None})
        get(connections, "/json", "PUT", json={"ü": 1})
        get(connections, "/bytes", "POST", content=b"\x00\x01", headers={"Content-Type": "application/cbor"})
        get(connections, "/nothing", "POST")
        connections.close()
    (_, path, headers, _), (_, _, as_json, json_body), (_, _, as_bytes, body), (_, _, nothing, _) = seen
    assert path == "/behind/api/a%2Fb%20%C3%B6?on=true&wait=1.5&node=x+y&node=z&none="
    assert headers["Authorization"] == "Bearer token"
    assert headers["Accept-Encoding"] == "identity"
    assert (as_json["Content-Type"], json_body) == ("application/json", '{"ü":1}'.encode())
    assert (as_bytes["Content-Type"], as_bytes["Content-Length"], body) == ("application/cbor", "2", b"\x00\x01")
    assert nothing["Content-Length"] == "0"


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering() as (url, seen, server):
        monkeypatch.setenv("http_proxy", f"http://me:se%40cret@127.0.0.1:{server.server_port}")
        connections = connect("http://unit.example:8080", "token")
        assert get(connections, "/a", params={"b": 1}) == {"ok": True}
        connections.close()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        direct = connect(url, "token")
        assert get(direct, "/direct") == {"ok": True}
        direct.close()
    assert [path for _, path, *_ in seen] == ["http://unit.example:8080/a?b=1", "/direct"]
    assert seen[0][2]["Proxy-Authorization"] == "Basic bWU6c2VAY3JldA=="
    assert seen[0][2]["Host"] == "unit.example:8080"
    assert "Proxy-Authorization" not in seen[1][2]


def test_a_proxy_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(UsageError, match="proxy: the environment's proxy is at socks5://"):
        connect("http://unit.example:8080", "token")


def test_who_never_answers_is_told_from_who_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connections = HttpConnections(f"http://127.0.0.1:{silent.getsockname()[1]}", {})
        with pytest.raises(NoAnswerError, match=r"did not answer within 0\.2 s"):
            exchange(connections, "here", "GET", "/", seconds=0.2, most_bytes=10)
    with pytest.raises(TransportError, match=r"here: cannot be reached \(.*refused"):
        exchange(connections, "here", "GET", "/", seconds=5, most_bytes=10)
    with pytest.raises(TransportError, match="cannot be reached"):
        get(HttpConnections("http://nowhere.invalid", {}), "/")


def test_tls_trusts_the_file_that_is_given_and_nobody_else(tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    made = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *made]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with answering() as (url, seen, server):
        server.socket = context.wrap_socket(server.socket, server_side=True)
        address = url.replace("http:", "https:")
        connections = connect(address, "token", ca_file=certificate)
        assert get(connections, "/a") == get(connections, "/b") == {"ok": True}
        connections.close()
        with pytest.raises(TransportError, match=r"cannot be reached .*certificate verify failed"):
            get(connect(address, "token"), "/c")
    assert [path for _, path, *_ in seen] == ["/a", "/b"]


def test_a_request_without_parameters_has_no_question_mark() -> None:
    assert Request(method="GET", path="/a", headers={}).target == "/a"
