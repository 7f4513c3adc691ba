"""The pages put together, on NiceGUI: imported when somebody visits, and one to a process.

Pages find the query unit that they are about in their request (`front`). Nothing is loaded from elsewhere, no utility
classes are compiled in the browser, and nothing is kept of a viewer but what the browser itself keeps.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from nicegui import app as nicegui_app
from nicegui import ui

RECONNECT_SECONDS = 5.0


def make_site() -> FastAPI:
    """The application that serves pages and what they load."""
    from sojourn.web.pages import nodes, overview, query, segment, segments, tomography
    from sojourn.web.pages.network import listing, topology
    from sojourn.web.pages.uploads import captures

    site = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    nicegui_app.config.socket_io_js_transports = ["websocket"]
    ui.run_with(
        site,
        title="Sojourn",
        favicon=Path(__file__).parent / "assets" / "icon.svg",
        binding_refresh_interval=None,
        reconnect_timeout=RECONNECT_SECONDS,
        message_history_length=100,
        tailwind=False,
        gzip_middleware_factory=None,
        show_welcome_message=False,
    )
    assert all((nodes, overview, query, segment, segments, tomography, listing, topology, captures))
    return site
