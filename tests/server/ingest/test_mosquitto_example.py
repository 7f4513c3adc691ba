"""The broker's configuration and ACL in the documentation, run by a real mosquitto: TLS, users, and who may do what."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, is_at_broker, make_epoch, running_unit

from mosquitto_broker import Broker
from sojourn.epochs.wire import encode
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.broker import Arrived, BrokerAccess, BrokerConnection, Outgoing, broker_at
from sojourn.node.transports.mqtt import MqttTransport
from sojourn.node.transports.sending import SpoolSender
from sojourn.node.transports.topics import NodeTopics, level
from sojourn.node.transports.transport import Announcement, RefusedError, TransportError
from sojourn.server.ingest.link import BrokerOptions
from waiting import PATIENCE_SECONDS, eventually

PAGE = Path(__file__).resolve().parents[3] / "docs" / "mqtt.md"
PASSWORDS = {"unit": "of-the-unit", "alpha": "of-alpha", "roof%20%2B1": "of-the-roof"}
TALLY = Announcement("disk", "disk_io", "operations", "process")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


class Site:
    """The documented broker with certificates and passwords of a test, and ways to sign in to it."""

    def __init__(self, directory: Path, *, certificates_only: bool) -> None:
        if shutil.which("openssl") is None or shutil.which("mosquitto_passwd") is None:
            pytest.skip("needs openssl and mosquitto_passwd")
        directory.mkdir()
        self.directory = directory
        self._make_certificates()
        self.passwords = directory / "sojourn.passwd"
        for user, password in PASSWORDS.items():
            self.set_password(user, password)
        (directory / "sojourn.acl").write_text(block("acl"))
        self.broker = Broker(directory, configuration=directory / "mosquitto.conf")
        text = block("conf").replace("listener 8883", f"listener {self.broker.port} 127.0.0.1")
        text = text.replace("/etc/mosquitto/certs/", f"{directory}/").replace("/etc/mosquitto/", f"{directory}/")
        text = text.replace("/var/lib/mosquitto/", f"{directory}/") + "user root\n"
        if certificates_only:
            proof = "require_certificate true\nuse_identity_as_username true\n"
            text = re.sub(r"^password_file .*\n", proof, text, flags=re.MULTILINE)
        (directory / "mosquitto.conf").write_text(text)
        for path in directory.iterdir():
            path.chmod(0o600)
        self.broker.start()

    def _make_certificates(self) -> None:
        here = self.directory
        new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl(here, *new, "-x509", "-days", "2", "-subj", "/CN=CA", "-keyout", "ca.key", "-out", "ca.pem")
        for name, subject in (("broker", "broker"), ("alpha", "alpha"), ("unit", "unit")):
            openssl(here, *new, "-subj", f"/CN={subject}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
            (here / "names").write_text("subjectAltName=IP:127.0.0.1\n")
            sign = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
            openssl(here, *sign, "-days", "2", "-extfile", "names", "-out", f"{name}.pem")

    def set_password(self, user: str, password: str) -> None:
        how = ["-b"] if self.passwords.exists() else ["-c", "-b"]
        subprocess.run(["mosquitto_passwd", *how, self.passwords, user, password], check=True, capture_output=True)

    @property
    def url(self) -> str:
        return f"mqtts://127.0.0.1:{self.broker.port}"

    def access(self, user: str, *, password: str | None = None, ca_file: Path | None = None) -> BrokerAccess:
        ca_file = ca_file or self.directory / "ca.pem"
        return broker_at(self.url, where="test", user=user, password=password or PASSWORDS.get(user), ca_file=ca_file)

    def by_certificate(self, name: str) -> BrokerAccess:
        here = self.directory
        files = {"ca_file": here / "ca.pem", "certificate": here / f"{name}.pem", "key": here / f"{name}.key"}
        return broker_at(self.url, where="test", **files)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site") / "broker", certificates_only=False)
    yield made
    made.broker.stop()


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[Unit]:
    password_file = site.directory / "unit.password"
    password_file.write_text(PASSWORDS["unit"])
    options = BrokerOptions(access=site.access("unit"), password_file=password_file)
    yield from running_unit(tmp_path_factory.mktemp("data"), LIMITS, broker_options=options)


def test_nodes_write_their_own_topics_over_tls_and_no_others(site: Site, unit: Unit) -> None:
    eventually(lambda: is_at_broker(unit))
    for node in ("alpha", "roof +1"):
        with closing(MqttTransport(site.access(level(node)), node=node)) as transport:
            assert transport.announce(TALLY) is None
            assert [receipt.status for receipt in transport.send([encode(make_epoch(1, node=node))])] == ["stored"]
    denied = pytest.raises(RefusedError, match=r"refuses to let alpha write sojourn/v1/beta/up/announce .*ACL")
    with closing(MqttTransport(site.access("alpha"), node="beta")) as transport, denied:
        transport.announce(TALLY)
    assert unit.store.streams(node="beta") == []


def test_a_node_does_not_read_what_comes_to_another(site: Site) -> None:
    came: list[str] = []

    def keep(message: Arrived) -> None:
        came.append(message.topic)
        message.done()

    reader = BrokerConnection(site.access("alpha"), client_id="reader", receive_maximum=10, arrived=keep)
    writer = BrokerConnection(site.access("unit"), client_id="writer", receive_maximum=10, arrived=keep)
    for connection in (reader, writer):
        connection.open(PATIENCE_SECONDS)
    reader.subscribe(["sojourn/v1/alpha/down/#"], seconds=PATIENCE_SECONDS)
    with suppress(RefusedError):  # a broker may refuse already what it would not deliver
        reader.subscribe(["sojourn/v1/+/down/#"], seconds=PATIENCE_SECONDS)
    for node in ("roof +1", "alpha"):
        writer.post(Outgoing(NodeTopics(node).down("replies"), b"for one alone")).result(PATIENCE_SECONDS)
    eventually(lambda: came)
    assert set(came) == {"sojourn/v1/alpha/down/replies"}
    for connection in (reader, writer):
        connection.close()


def test_who_is_not_let_in_is_told_what_to_check(site: Site, tmp_path: Path) -> None:
    wrong = MqttTransport(site.access("alpha", password="another"), node="alpha")
    with pytest.raises(RefusedError, match=r"refuses signing in .*check the user name, the password"):
        wrong.announce(TALLY)
    openssl(tmp_path, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other", "-out", "other.pem")
    stranger = MqttTransport(site.access("alpha", ca_file=tmp_path / "other.pem"), node="alpha")
    with pytest.raises(TransportError, match=r"certificate is not trusted .*--ca-file"):
        stranger.announce(TALLY)


def test_a_password_that_is_changed_loses_nothing(site: Site, unit: Unit, tmp_path: Path) -> None:
    """The broker refuses while the two differ; the spool keeps everything, and sends it when they agree again."""
    eventually(lambda: is_at_broker(unit))
    with closing(Spool(tmp_path / "spool", limit_bytes=1 << 20)) as spool:
        for sequence in range(20, 30):
            spool.put(make_epoch(sequence))
        site.set_password("alpha", "a-new-one")
        site.broker.reload()
        reports: list[str] = []
        old = MqttTransport(site.access("alpha"), node="alpha")
        sender = SpoolSender(spool, old, lock=threading.RLock(), report=reports.append)
        eventually(lambda: _is_refused(sender))
        assert len(spool) == 10
        with closing(MqttTransport(site.access("alpha", password="a-new-one"), node="alpha")) as new:
            SpoolSender(spool, new, lock=threading.RLock(), report=reports.append).send_waiting()
        assert len(spool) == 0
        assert all(unit.store.epoch_bytes("alpha", "disk", sequence) for sequence in range(20, 30))
    site.set_password("alpha", PASSWORDS["alpha"])
    site.broker.reload()


def _is_refused(sender: SpoolSender) -> bool:
    try:
        sender.send_waiting()
    except RefusedError:
        return True
    return False


def test_a_query_unit_that_is_refused_says_so_and_reads_its_password_again(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password_file = tmp_path / "password"
    password_file.write_text("of-somebody-else")
    options = BrokerOptions(access=site.access("unit"), password_file=password_file)
    for unit in running_unit(tmp_path / "data", LIMITS, broker_options=options):
        eventually(lambda: "refuses signing in" in caplog.text)
        assert not is_at_broker(unit)
        password_file.write_text(PASSWORDS["unit"])
        eventually(lambda unit=unit: is_at_broker(unit))  # type: ignore[misc]
    assert caplog.text.count("check the user name, the password") == 1
    assert "of-somebody-else" not in caplog.text


def test_certificates_alone_say_who_a_node_is(tmp_path: Path) -> None:
    site = Site(tmp_path / "broker", certificates_only=True)
    try:
        options = BrokerOptions(access=site.by_certificate("unit"))
        for unit in running_unit(tmp_path / "data", LIMITS, broker_options=options):
            eventually(lambda unit=unit: is_at_broker(unit))  # type: ignore[misc]
            with closing(MqttTransport(site.by_certificate("alpha"), node="alpha")) as transport:
                assert [receipt.status for receipt in transport.send([encode(make_epoch())])] == ["stored"]
            denied = pytest.raises(RefusedError, match="ACL")
            with closing(MqttTransport(site.by_certificate("alpha"), node="beta")) as transport, denied:
                transport.announce(TALLY)
            with pytest.raises(TransportError):
                MqttTransport(site.access("alpha"), node="alpha").announce(TALLY)
    finally:
        site.broker.stop()
