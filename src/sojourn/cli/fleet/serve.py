"""`sojourn serve`: the query unit, on this machine unless told otherwise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.configured import ConfiguredCommand
from sojourn.cli.fleet.nodes import quota, silence
from sojourn.cli.options import LogFormatOption, grouped
from sojourn.cli.output import logged_in_json, say
from sojourn.core.errors import UsageError
from sojourn.core.host.settings import read_settings
from sojourn.core.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from sojourn.server.door.gate import Dashboard
    from sojourn.server.door.limits import Limits
    from sojourn.server.ingest.link import BrokerOptions
    from sojourn.server.options import ServeOptions
    from sojourn.web.uploads.desk import UploadOptions

COMMAND = ConfiguredCommand
HELP = "Run the query unit: takes epochs from nodes, stores them and answers queries over HTTP."
LEAST_KEPT_NS = 10**9
EXAMPLE = (
    "Examples:  sojourn serve --data /var/lib/sojourn --port 8080\n\n"
    "sojourn serve --data postgresql+psycopg://sojourn@db.example/sojourn --workers 3\n\n"
    "sojourn serve --mqtt mqtts://unit@broker.example --mqtt-password-file unit.password --mqtt-ca-file ca.pem"
)


def default_data() -> Path:
    """Where the data of the user's own query unit lies."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sojourn"


def configured_data(given: str | None) -> str:
    """Where a query unit's data lies for commands beside `serve`: as they are told, else where `serve` has it."""
    if given is None and not (given := os.environ.get("SOJOURN_SERVE_DATA")):
        given = read_settings("serve").values.get("data")
    return given or str(default_data())


DataOption = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR", help="Directory of the store, or a database URL; by default the user's data directory."
    ),
]


@dataclass(frozen=True)
class Listening:
    """Where the query unit listens."""

    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback are for real networks.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080
    certificate: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate (PEM), to speak HTTPS.")
    ] = None
    private_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key.")] = None
    forwarded_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="A proxy whose X-Forwarded-For says where requests come from; repeatable."
        ),
    ] = None
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", help="Processes that take epochs, beside the one that plans and answers; 0: one does all."
        ),
    ] = 0


@dataclass(frozen=True)
class Keeping:
    """What is kept for how long."""

    keep_epochs: Annotated[
        str | None, typer.Option(metavar="TIME", help="Forget epochs after this time, such as 30d; by default never.")
    ] = None
    merge_epochs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGE:STEP", help="Merge epochs of this age into steps of time, such as 7d:1h; repeatable."
        ),
    ] = None
    keep_collections: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Remove packets of sinks so long after they came, such as 30d; else never."),
    ] = None
    keep_audit: Annotated[
        str, typer.Option(metavar="TIME", help="Forget administrative actions after this time; or never.")
    ] = "400d"


@dataclass(frozen=True)
class Watching:
    """What is noticed about nodes, and who is told."""

    silent_after: Annotated[
        str, typer.Option(metavar="TIME", help="How long a node may be silent before that is an event; or never.")
    ] = "5min"
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Where to POST that a node fell silent, or is back.")
    ] = None


@dataclass(frozen=True)
class OfNodes:
    """What a node may use."""

    quota_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Of epochs that a node may send on a day, or none.")
    ] = "10GB"
    quota_streams: Annotated[str, typer.Option(metavar="N", help="Streams that a node may have, or none.")] = "1000"
    quota_keys: Annotated[str, typer.Option(metavar="N", help="Keys of all streams of a node, or none.")] = "1000000"


@dataclass(frozen=True)
class Uploads:
    """What viewers may upload in a browser."""

    uploads: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Take captures and traces to measure, of this size together, a half of it at most from one token.",
        ),
    ] = None
    keep_uploads: Annotated[
        str, typer.Option(metavar="TIME", help="Remove reports of uploads, and uploads without one, after this time.")
    ] = "1h"

    def options(self, data: str) -> UploadOptions | None:
        """Where they lie: beside the store, or in the user's data directory if that is elsewhere."""
        keep_ns = _kept(self.keep_uploads, "--keep-uploads") or 0
        if self.uploads is None:
            return None
        most = parse_bytes(self.uploads, where="--uploads")
        if most <= 0:
            raise UsageError("that is no room for anything", where="--uploads", action="give a size, such as 2GB")
        if not has_dashboard():
            what = "uploads are a part of the dashboard, which is not installed"
            raise UsageError(what, where="--uploads", action="pip install 'sojourn[web]'")
        from sojourn.web.uploads.desk import UploadOptions

        folder = default_data() if "://" in data else Path(data)
        return UploadOptions(most_bytes=most, keep_ns=keep_ns, directory=folder / "uploads")


@dataclass(frozen=True)
class AtBroker:
    """The broker where nodes publish."""

    mqtt: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Also take what nodes publish at a broker: mqtts://USER@HOST:PORT."),
    ] = None
    mqtt_password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the user's password at the broker.")
    ] = None
    mqtt_ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates (PEM) to trust instead of the system's.")
    ] = None
    mqtt_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate (PEM) to show to the broker.")] = (
        None
    )
    mqtt_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.")] = None

    def options(self) -> BrokerOptions | None:
        """The broker that the options describe; its files are read once, before anything starts."""
        password, ca_file, certificate, key = self.mqtt_password_file, self.mqtt_ca_file, self.mqtt_cert, self.mqtt_key
        if self.mqtt is None:
            if any((password, ca_file, certificate, key)):
                raise UsageError(
                    "there is no --mqtt that it could be for", where="serve", action="give the broker's URL"
                )
            return None
        from sojourn.node.transports.broker import broker_at
        from sojourn.server.ingest.link import BrokerOptions

        access = broker_at(self.mqtt, where="--mqtt", ca_file=ca_file, certificate=certificate, key=key)
        options = BrokerOptions(access=access, password_file=password)
        options.current()
        return options


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """All that `serve` is told."""

    data: DataOption = None
    listening: Listening
    keeping: Keeping
    watching: Watching
    quotas: OfNodes
    uploads: Uploads
    broker: AtBroker
    log_format: LogFormatOption = "text"

    def settled(self) -> ServeOptions:
        """What the options say, checked as far as that is possible without opening anything."""
        from sojourn.server.options import ServeOptions

        place = self.data or str(default_data())
        taken = self.uploads.options(place)
        return ServeOptions(
            data=place,
            host=self.listening.host,
            port=self.listening.port,
            certificate=self.listening.certificate,
            private_key=self.listening.private_key,
            forwarded_from=tuple(self.listening.forwarded_from or ()),
            own_directory=default_data(),
            limits=self._limits(taken.most_bytes if taken else 0),
            logs_json=self.log_format == "json",
            broker=self.broker.options(),
            workers=self.listening.workers,
            dashboard=_dashboard(taken),
        )

    def _limits(self, upload_bytes: int) -> Limits:
        from sojourn.server.door.limits import Limits
        from sojourn.store.upkeep.downsampling import MergeStep

        keeping, quotas = self.keeping, self.quotas
        return Limits(
            upload_bytes=upload_bytes,
            keep_epochs_ns=_kept(keeping.keep_epochs, "--keep-epochs"),
            merge_epochs=tuple(MergeStep.parse(text) for text in keeping.merge_epochs or ()),
            keep_collections_ns=_kept(keeping.keep_collections, "--keep-collections"),
            keep_audit_ns=None if keeping.keep_audit == "never" else _kept(keeping.keep_audit, "--keep-audit"),
            silent_after_ns=silence(self.watching.silent_after, "--silent-after"),
            webhook=_checked_webhook(self.watching.webhook),
            quota_bytes=quota(quotas.quota_bytes, "--quota-bytes"),
            quota_streams=quota(quotas.quota_streams, "--quota-streams"),
            quota_keys=quota(quotas.quota_keys, "--quota-keys"),
        )


@grouped
def serve(flags: ServeFlags) -> None:
    """Serve until Ctrl-C."""
    from sojourn.server.serving import serve as run
    from sojourn.store.database import shown_place

    options = flags.settled()
    tell = logged_in_json("sojourn.serve") if options.logs_json else say

    def announce(url: str, token_file: Path | None) -> None:
        print(url, flush=True)
        if token_file is not None:
            tell(f"the first admin's token is in {token_file}")
        by = f" by {1 + options.workers} processes" if options.workers else ""
        tell(f"serving {shown_place(options.data)}{by}; Ctrl-C stops")
        if not options.is_local and options.certificate is None:
            tell("warning: tokens travel unencrypted; give --tls-cert and --tls-key")
        if options.broker is not None and options.broker.is_exposed:
            tell("warning: the broker's password travels unencrypted; use mqtts://")

    run(options, announce)


def has_dashboard() -> bool:
    """Whether what draws pages is installed."""
    from importlib.util import find_spec

    return find_spec("nicegui") is not None


def _dashboard(uploads: UploadOptions | None) -> Callable[[FastAPI], Dashboard] | None:
    """The pages, if what draws them is installed; it is imported when somebody visits."""
    if not has_dashboard():
        return None
    from sojourn.web.pages.front import PageFront

    return partial(PageFront, uploads=uploads)


def _checked_webhook(text: str | None) -> str | None:
    from sojourn.objectives.objective import is_webhook

    if text is not None and not is_webhook(text):
        raise UsageError("it is no address", where="--webhook", action="give http:// or https://, a host and a path")
    return text


def _kept(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    kept_ns = parse_duration(text)
    if kept_ns < LEAST_KEPT_NS:
        raise UsageError(f"{text!r} is less than a second", where=option, action="write 30d or 12h")
    return kept_ns
