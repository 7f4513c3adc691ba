"""A QUIC server and a client of aioquic, as processes: ``quic_hosts.py server FOLDER`` and ``client ADDRESS ROUNDS``.

The client asks for a number of bytes on one stream after the other, and ends when all have come. With GREASE in the
environment a host sets its spin bit at random, packet by packet, as RFC 9000 allows.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived
from aioquic.quic.packet_builder import QuicPacketBuilder
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PORT = 443
READY = "ready"


class BytesServer(QuicConnectionProtocol):
    """Answers a number with so many bytes."""

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived) and event.end_stream:
            self._quic.send_stream_data(event.stream_id, bytes(int(event.data)), end_stream=True)
            self.transmit()


def write_certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    secret = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    return certificate, private


async def run_server(folder: Path) -> None:
    configuration = QuicConfiguration(is_client=False)
    configuration.load_cert_chain(*write_certificate(folder))
    await serve("0.0.0.0", PORT, configuration=configuration, create_protocol=BytesServer)
    print(READY, flush=True)
    await asyncio.Future()


async def run_client(address: str, sizes: list[int]) -> None:
    configuration = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE)
    async with connect(address, PORT, configuration=configuration) as client:
        for size in sizes:
            reader, writer = await client.create_stream()
            writer.write(str(size).encode())
            writer.write_eof()
            assert len(await reader.read()) == size


def main() -> None:
    if os.environ.get("GREASE"):
        greased = property(lambda _: random.getrandbits(1), lambda *_: None)
        # A connection is asked for its bit once for all packets that it sends at a time, their builder for each.
        QuicPacketBuilder._spin_bit = greased  # type: ignore[assignment]
    what, where, *sizes = sys.argv[1:]
    asyncio.run(run_server(Path(where)) if what == "server" else run_client(where, list(map(int, sizes))))


if __name__ == "__main__":
    main()
