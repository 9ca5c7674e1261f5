"""Jupyter server extension: what a figure would load from Panel's CDN comes from this server.

With PANEL_INLINE a notebook holds Panel's scripts, but it still links stylesheets at `$PANEL_CDN_ROOT<version>/dist/`.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from tornado.web import StaticFileHandler


def _load_jupyter_server_extension(server):
    dist = Path(find_spec("panel").origin).parent / "dist"
    route = (server.base_url + r"panel-files/[^/]+/dist/(.*)", StaticFileHandler, {"path": str(dist)})
    server.web_app.add_handlers(".*$", [route])

    def tell_the_kernels():  # once the server runs: only then is its port known
        os.environ.update(PANEL_INLINE="true", PANEL_CDN_ROOT=server.connection_url + "panel-files/")

    server.io_loop.add_callback(tell_the_kernels)
