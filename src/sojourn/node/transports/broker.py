"""A connection to an MQTT 5 broker, of a node or of a query unit: opened, used and lost once; then another is made.

Guarantee: what is published was taken by the broker (PUBACK) when `publish` returns, and what the broker says against
it is raised: `TransportError` where trying again may help, `RefusedError` where somebody has to change something. A
message that comes in is acknowledged when `Arrived.done` is called, so that a broker holds back what its reader has not
worked off (receive maximum). Every connection is a clean start whose session ends with it: what must not be lost lies
in spools and stores, and a broker need not keep anything for nodes that are away.
Cost: a thread; packets of at most `MOST_PACKET_BYTES`, of which at most `receive_maximum` are under way to us, and to
the broker as many as it says; what is published beyond that waits here.
Reference: MQTT 5.0 (OASIS, 2019), by paho-mqtt, which is imported when a connection is made.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sojourn.core.errors import UsageError
from sojourn.node.transports.exchange import read_token, trusting
from sojourn.node.transports.topics import MOST_PACKET_BYTES
from sojourn.node.transports.transport import NoAnswerError, RefusedError, TooLargeError, TransportError

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

PORTS = {"mqtt": 1883, "mqtts": 8883}
# Who is silent for half as long again is taken for gone; a node behind a NAT keeps its way open.
KEEP_ALIVE_SECONDS = 30
MOST_TEXT = 300
MOST_PROPERTIES = 20
MOST_IN_FLIGHT = 1000
CLOSE_SECONDS = 1.0
_LOG = logging.getLogger("sojourn.broker")
_WITH_WILL = 0x04
_NOBODY, _TOO_LARGE, _UNSUPPORTED = 0x10, 0x95, 0x84
# Reasons that last until somebody changes names, passwords or rights (MQTT 5.0, §2.4).
_FORBIDDEN = {0x85, 0x86, 0x87, 0x8A, 0x8C}
_DENIED = "check the user name, the password and the broker's ACL"


class NobodyError(TransportError):
    """The broker took a message that nobody is subscribed to."""


@dataclass(frozen=True)
class BrokerAccess:
    """Where a broker is, and how it is signed in to."""

    url: str
    host: str
    port: int
    is_tls: bool
    user: str | None = None
    password: str | None = None
    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    password_file: Path | None = None  # is read for every connection; what it held at the start, if that fails

    def current_password(self) -> str | None:
        """The password, also once it was changed."""
        if self.password_file is not None:
            with suppress(UsageError):
                return read_token(self.password_file)
        return self.password

    def tls(self) -> ssl.SSLContext:
        """TLS that checks the broker's certificate and name, and shows ours if there is one."""
        context = ssl.create_default_context() if self.ca_file is None else trusting(self.ca_file)
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                what = error.strerror or str(error)
                files = ", ".join(str(path) for path in (self.certificate, self.key) if path)
                raise UsageError(what, where=files, action="give a certificate and its private key, PEM") from None
        return context


def is_broker(server: str) -> bool:
    """Whether an address is a broker's."""
    return server.partition("://")[0] in PORTS


def broker_at(
    url: str,
    *,
    where: str,
    user: str | None = None,
    password: str | None = None,
    ca_file: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    password_file: Path | None = None,
) -> BrokerAccess:
    """A broker from its URL, which may name the user; its files are read once, so that faults show at the start.

    >>> broker_at("mqtts://unit@broker.example", where="--mqtt").port
    8883
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in PORTS or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(
            f"{url[:MOST_TEXT]!r} is no address of a broker", where=where, action="write mqtts://HOST:PORT"
        )
    if find_spec("paho") is None:
        raise UsageError("a broker needs paho-mqtt", where=where, action="pip install 'sojourn[mqtt]'")
    if parts.password is not None:
        raise UsageError("a password in an address is seen by others", where=where, action="write it in a file")
    name = unquote(parts.username) if parts.username else user
    is_tls = parts.scheme == "mqtts"
    if not is_tls and (ca_file or certificate):
        raise UsageError("certificates are for mqtts://", where=where, action="write mqtts://HOST:PORT")
    shown = f"{parts.scheme}://{'[' + parts.hostname + ']' if ':' in parts.hostname else parts.hostname}:{port}"
    access = BrokerAccess(shown, parts.hostname, port, is_tls, name, password, ca_file, certificate, key, password_file)
    if is_tls:
        access.tls()
    return access


@dataclass(frozen=True)
class Arrived:
    """A message that came; `done` tells the broker that it was worked off."""

    topic: str
    payload: bytes
    qos: int
    is_retained: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    user: Mapping[str, str] = field(default_factory=dict)
    done: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Outgoing:
    """A message to be published, at QoS 1."""

    topic: str
    payload: bytes
    is_retained: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    user: Mapping[str, str] = field(default_factory=dict)
    expires_seconds: int | None = None


def _send_at_once(connection: Any) -> None:
    """Have small packets go without waiting for the acknowledgement of those before: that waits for 40 ms itself."""
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class BrokerConnection:
    """One connection; `arrived` and `lost` are called in its thread. Safe from several threads."""

    def __init__(
        self,
        access: BrokerAccess,
        *,
        client_id: str,
        receive_maximum: int,
        arrived: Callable[[Arrived], object],
        lost: Callable[[TransportError], object] = lambda _: None,
        will: Outgoing | None = None,
    ) -> None:
        self.access = access
        self._arrived, self._lost = arrived, lost
        self._receive_maximum = receive_maximum
        self._most_packet = MOST_PACKET_BYTES
        self._connected: Future[None] = Future()
        self._acknowledged: dict[tuple[str, int], Future[Sequence[int]]] = {}
        self._ended = Event()
        self._end = Lock()
        self._why: TransportError | None = None
        self._client = self._new_client(client_id, will)

    def _new_client(self, client_id: str, will: Outgoing | None) -> Client:
        from paho.mqtt.client import Client, MQTTv5
        from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

        finish, url = self._finish, self.access.url

        class WatchedClient(Client):
            """Its thread tells that it ends, whatever ends it: a connection that nobody reads must not pass for one."""

            def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> MQTTErrorCode:
                code, why = MQTTErrorCode.MQTT_ERR_UNKNOWN, "its thread ended"
                try:
                    code = super().loop_forever(timeout, retry_first_connection)
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"[:MOST_TEXT]
                finally:
                    finish(TransportError(f"lost the connection ({why})", where=url))
                return code

        client = WatchedClient(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5, reconnect_on_failure=False, manual_ack=True
        )
        if self.access.user is not None:
            client.username_pw_set(self.access.user, self.access.current_password())
        if self.access.is_tls:
            client.tls_set_context(self.access.tls())
        if will is not None:
            # A will knows no message expiry of its own here: an empty one clears what is retained.
            client.will_set(will.topic, will.payload, qos=1, retain=will.is_retained)
        client.max_inflight_messages = MOST_IN_FLIGHT
        client.on_socket_open = lambda _client, _data, connection: _send_at_once(connection)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_subscribe = lambda _client, _data, mid, codes, _properties: self._note("subscribe", mid, codes)
        client.on_publish = lambda _client, _data, mid, code, _properties: self._note("publish", mid, [code])
        return client

    @property
    def is_open(self) -> bool:
        return self._connected.done() and not self._ended.is_set()

    def open(self, seconds: float) -> None:
        """Connect and sign in."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        asked: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        asked.SessionExpiryInterval = 0
        asked.ReceiveMaximum = self._receive_maximum
        asked.MaximumPacketSize = MOST_PACKET_BYTES
        self._client.connect_timeout = max(0.1, seconds)
        try:
            self._client.connect(
                self.access.host, self.access.port, KEEP_ALIVE_SECONDS, clean_start=True, properties=asked
            )
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from None
        self._client.loop_start()
        try:
            self._connected.result(seconds)
        except TimeoutError:
            self.close()
            raise NoAnswerError(
                f"did not answer within {seconds:g} s", where=self.access.url, action="is it a broker of MQTT 5?"
            ) from None
        except (TransportError, RefusedError):
            self.close()
            raise

    def _unreachable(self, error: Exception) -> TransportError | RefusedError:
        if isinstance(error, ssl.SSLCertVerificationError):
            what = f"its certificate is not trusted ({error.verify_message})"
            return TransportError(what, where=self.access.url, action="give the file of its CA: --ca-file")
        what = " ".join(str(error).split())[:MOST_TEXT]
        return TransportError(f"cannot be reached ({what})", where=self.access.url, action="is the broker running?")

    def _on_connect(self, client: Client, _data: object, _flags: object, reason: Any, properties: Any) -> None:
        if self._connected.done():
            return
        if not reason.is_failure:
            self._most_packet = min(MOST_PACKET_BYTES, getattr(properties, "MaximumPacketSize", MOST_PACKET_BYTES))
            # Nothing is on its way yet: now paho can still be told how much the broker takes at once (§4.9).
            client._max_inflight_messages = min(MOST_IN_FLIGHT, getattr(properties, "ReceiveMaximum", MOST_IN_FLIGHT))
            self._connected.set_result(None)
            return
        self._connected.set_exception(self._refused(reason.value, str(reason), "signing in"))

    def _refused(self, code: int, text: str, what: str) -> TransportError | RefusedError:
        """What a broker's reason code means (MQTT 5.0, §2.4)."""
        where = self.access.url
        if code == _UNSUPPORTED:
            return RefusedError("does not speak MQTT 5", where=where, action="use a broker that does", status=426)
        if code in _FORBIDDEN:
            return RefusedError(f"the broker refuses {what} ({text})", where=where, action=_DENIED, status=403)
        if code == _TOO_LARGE:
            return TooLargeError(f"the broker refuses {what}: it is too large (413)", where=where, status=413)
        if code == _NOBODY:
            action = "is sojourn serve --mqtt running, with this broker?"
            return NobodyError("the broker is there, and no query unit", where=where, action=action)
        return TransportError(f"the broker refuses {what} now ({text})", where=where)

    def _on_disconnect(self, _client: Client, _data: object, _flags: object, reason: Any, _properties: object) -> None:
        self._finish(TransportError(f"lost the connection ({reason})", where=self.access.url))

    def _finish(self, why: TransportError) -> None:
        """Let all who wait know that nothing more will come; once."""
        with self._end:
            if self._ended.is_set():
                return
            self._why = why
            self._ended.set()
        with suppress(InvalidStateError):
            self._connected.set_exception(why)
        for waiting in list(self._acknowledged.values()):
            with suppress(InvalidStateError):
                waiting.set_exception(why)
        self._lost(why)

    def _on_message(self, client: Client, _data: object, message: Any) -> None:
        try:
            self._arrived(_arrived(client, message))
        except Exception as error:
            # Whatever a message holds, it must not end the thread that all others come by.
            _LOG.error("error: a message went wrong, and others go on: %r", error)
            client.ack(message.mid, message.qos)

    def _note(self, kind: str, mid: int, codes: Sequence[Any]) -> None:
        # Whichever is first, the broker's answer or the one who waits for it, makes the place where they meet.
        waiting = self._acknowledged.setdefault((kind, mid), Future())
        with suppress(InvalidStateError):
            waiting.set_result([code.value for code in codes])

    def _awaited(self, kind: str, mid: int | None) -> Future[Sequence[int]]:
        if mid is None:
            raise self._why or TransportError("lost the connection", where=self.access.url)
        waiting = self._acknowledged.setdefault((kind, mid), Future())
        waiting.add_done_callback(lambda _: self._acknowledged.pop((kind, mid), None))
        if self._why is not None:
            with suppress(InvalidStateError):
                waiting.set_exception(self._why)
        return waiting

    def subscribe(self, filters: Sequence[str], *, seconds: float) -> None:
        """Have messages come, at QoS 1; retained ones are marked as such only when they come first."""
        from paho.mqtt.subscribeoptions import SubscribeOptions

        options = SubscribeOptions(qos=1)
        _, mid = self._client.subscribe([(one, options) for one in filters])
        codes = self._result(self._awaited("subscribe", mid), seconds)
        for one, code in zip(filters, codes, strict=True):
            if code >= 0x80:
                raise self._refused(code, f"reason {code:#x}", f"to let {self.access.user or 'us'} read {one}")

    def publish(self, message: Outgoing, *, seconds: float) -> None:
        """Hand a message to the broker, and wait until it has it."""
        (code,) = self._result(self.post(message), seconds)
        if code:
            raise self._refused(code, f"reason {code:#x}", f"to let {self.access.user or 'us'} write {message.topic}")

    def post(self, message: Outgoing) -> Future[Sequence[int]]:
        """Hand a message to the broker without waiting; what it says of it comes later."""
        if len(message.payload) + len(message.topic) + 1000 > self._most_packet:
            raise TooLargeError(
                f"takes packets of at most {self._most_packet:,} bytes (413)", where=self.access.url, status=413
            )
        if self._why is not None:
            raise self._why
        sent = self._client.publish(
            message.topic, message.payload, qos=1, retain=message.is_retained, properties=_properties(message)
        )
        return self._awaited("publish", sent.mid)

    def _result(self, waiting: Future[Sequence[int]], seconds: float) -> Sequence[int]:
        try:
            return waiting.result(max(0.1, seconds))
        except TimeoutError:
            raise NoAnswerError(
                f"did not answer within {seconds:g} s", where=self.access.url, action="is the broker overloaded?"
            ) from None

    def close(self, *, with_will: bool = False) -> None:
        """End it; with its will, if there is one."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.reasoncodes import ReasonCode

        reason = ReasonCode(PacketTypes.DISCONNECT, identifier=_WITH_WILL if with_will else 0)
        with suppress(Exception):
            self._client.disconnect(reasoncode=reason)
        connection: Any = self._client.socket()
        if connection is not None and not self._ended.wait(CLOSE_SECONDS):
            # Who takes nothing any more is not waited for until the keep-alive notices.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._client.loop_stop()
        self._finish(TransportError("the connection was closed", where=self.access.url))


def _arrived(client: Client, message: Any) -> Arrived:
    properties = message.properties
    mid, qos = message.mid, message.qos
    return Arrived(
        message.topic,
        bytes(message.payload),
        qos,
        message.retain,
        getattr(properties, "ResponseTopic", None),
        getattr(properties, "CorrelationData", None),
        dict(getattr(properties, "UserProperty", ())[:MOST_PROPERTIES]),
        lambda: client.ack(mid, qos),
    )


def _properties(message: Outgoing) -> Properties:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    made: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if message.response_topic is not None:
        made.ResponseTopic = message.response_topic
    if message.correlation is not None:
        made.CorrelationData = message.correlation
    if message.user:
        made.UserProperty = list(message.user.items())
    if message.expires_seconds is not None:
        made.MessageExpiryInterval = message.expires_seconds
    properties: Properties = made
    return properties
