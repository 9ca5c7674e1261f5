"""The server of book and apps: this process becomes it, and a child builds the book meanwhile if it is stale."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path


def serve(port: int) -> None:
    """Serves book and apps on http://localhost:port until it is stopped; does not return."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "apps").is_dir():
        raise ValueError(
            "book and apps are in the repository, not in the installed package: run `make serve` in a clone."
        )
    if importlib.util.find_spec("panel") is None:
        raise ValueError("book and apps are served by Panel: `pip install -e '.[apps,book]'`.")
    check_port(port)
    os.environ["PHIBE_RUNS"] = str(Path("runs").resolve())  # of the folder that it was started in
    os.chdir(root)
    subprocess.Popen([sys.executable, "book/build.py", "--for", str(os.getpid())])
    print(f"PhiBE-Flow is on http://localhost:{port} (Ctrl-C stops it)", flush=True)
    os.execv(sys.executable, server_command(port, sorted(map(str, Path("apps").glob("*_explorer.py")))))


def server_command(port: int, apps: list[str]) -> list[str]:
    """Panel's server for book and apps, for this machine alone."""
    origins = [part for host in ("localhost", "127.0.0.1") for part in ("--allow-websocket-origin", f"{host}:{port}")]
    pages = ["--index", "apps/index.html", "--disable-index-redirect", "--plugins", "apps.routes"]
    return [
        sys.executable,
        "-m",
        "panel",
        "serve",
        *apps,
        "--address",
        "localhost",
        "--port",
        str(port),
        *origins,
        *pages,
    ]


def check_port(port: int) -> None:
    """Refuses a port that another program listens on, and names the next free one."""
    if not 1 <= port <= 65535:
        raise ValueError(f"--port must be between 1 and 65535; got {port}.")
    if busy(port):
        free = next(other for other in (*range(port + 1, 65536), *range(5006, port)) if not busy(other))
        raise ValueError(f"port {port} is busy; try --port {free} (make serve PORT={free}).")


def busy(port: int) -> bool:
    """Whether another program has the port, at any address of localhost."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
