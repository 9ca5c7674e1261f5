"""Seconds of `make serve` in a fresh clone: to install, to the first page, to the book, and of a second start. JSON.

The clone is of the last commit, in a temporary folder; package downloads come from the client's cache where it has one.
The first page is the one that leads to the apps; the address of the book answers from then on, and is finished later.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PORT, LIMIT = 5987, 1800


def status(address: str) -> int:
    """The status with which the server answers; 0 while it does not."""
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            return response.status
    except (urllib.error.URLError, OSError):
        return 0


@contextmanager
def serving(clone: Path) -> Iterator[subprocess.Popen]:
    """A running `make serve`."""
    server = subprocess.Popen(
        ["make", "serve", f"PORT={PORT}"], cwd=clone, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield server
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def seconds_to(path: str, server: subprocess.Popen) -> float:
    """How long it takes from now until a page is there: 200, as the page that waits for the book has 202."""
    start = time.perf_counter()
    while status(f"http://localhost:{PORT}/{path}") != 200:
        if server.poll() is not None or time.perf_counter() - start > LIMIT:
            raise SystemExit("`make serve` did not get to serve a page; run it by hand to see why.")
        time.sleep(0.1)
    return round(time.perf_counter() - start, 1)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone, start = Path(folder) / "phibe", time.perf_counter()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        subprocess.run(["make", ".venv/.ready"], cwd=clone, stdout=subprocess.DEVNULL, check=True)
        seconds = {"install": round(time.perf_counter() - start, 1)}
        with serving(clone) as server:
            seconds["first_page"] = seconds_to("", server)
            seconds["book_after_first_page"] = seconds_to("book/index.html", server)
        with serving(clone) as server:
            seconds["second_start"] = seconds_to("book/index.html", server)
        print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
