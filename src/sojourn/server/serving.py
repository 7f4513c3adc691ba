"""How the query unit is run at an address."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from sojourn.core.errors import ServerError, log_to_stderr
from sojourn.server.app import create_app
from sojourn.server.door.connections import WEBSOCKETS, Door, UnitConfiguration, UnitServer, raise_descriptors
from sojourn.server.options import ServeOptions
from sojourn.server.processes.forwarding import KEPT_SECONDS
from sojourn.server.processes.supervision import IngestProcesses, PlanningServer
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.tokens import Role, TokenStore, write_token

TOKEN_NAME = "admin-token"


def first_token(store: EpochStore, directory: Path) -> Path | None:
    """Where an admin's token was written, if there was none yet at all; only its owner can read it."""
    tokens = TokenStore(store)
    if tokens.all():
        return None
    token, text = tokens.create(Role.ADMIN, name="first admin")
    path = directory / TOKEN_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_token(path, text)
    except OSError as error:
        tokens.revoke(token.id)
        raise ServerError(
            error.strerror or str(error), where=str(path), action="the first admin's token has to be written there"
        ) from None
    return path


def make_server(store: EpochStore, door: Door, options: ServeOptions) -> UnitServer:
    """The query unit on an open store, to be run with its door as the only socket."""
    if options.workers:
        return _planning_server(store, door, options)
    configuration = UnitConfiguration(
        create_app(store, limits=options.limits, broker=options.broker, dashboard=options.dashboard),
        door,
        proxies=options.forwarded_from,
        timeout_graceful_shutdown=options.graceful_seconds,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.private_key,
        ws="none" if options.dashboard is None else WEBSOCKETS,
    )
    return UnitServer(configuration)


def _planning_server(store: EpochStore, door: Door, options: ServeOptions) -> UnitServer:
    """The same with ingest processes at the door: they speak TLS, and know which proxies are believed."""
    processes = IngestProcesses(options, door)
    configuration = UnitConfiguration(
        create_app(
            store, limits=options.limits, broker=options.broker, processes=processes, dashboard=options.dashboard
        ),
        door,
        keep_alive_seconds=KEPT_SECONDS,
        timeout_graceful_shutdown=options.graceful_seconds,
        ws="none" if options.dashboard is None else WEBSOCKETS,
    )
    return PlanningServer(configuration, processes)


def serve(options: ServeOptions, announce: Callable[[str, Path | None], None]) -> None:
    """Serve until stopped; `announce` gets the URL and the first token's file once connections are accepted."""
    raise_descriptors()
    store = open_store(options.data)
    try:
        door = Door(options.host, options.port, proxies=options.forwarded_from)
        door.listen()
        host, port = door.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        token_file = first_token(store, options.token_directory)
        log_to_stderr(as_json=options.logs_json)  # from here on: the address is the first line of all
        announce(f"{options.scheme}://{shown}:{port}", token_file)
        server = make_server(store, door, options)
        # What is there by now stays: searching the rest for garbage is quick, so closed connections go in time.
        gc.collect()
        gc.freeze()
        server.run(sockets=[door])
    finally:
        store.close()
