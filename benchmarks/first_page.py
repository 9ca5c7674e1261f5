"""Seconds from `make serve` in a fresh clone, with nothing set up, to the first page of the book. Prints JSON.

The clone is of the last commit, in a temporary folder; package downloads come from the client's cache where it has one.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PORT, LIMIT = 5987, 1800


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "phibe"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        start = time.perf_counter()
        server = subprocess.Popen(
            ["make", "serve", f"PORT={PORT}"], cwd=clone, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while not answers(f"http://localhost:{PORT}/book/index.html"):
                if server.poll() is not None or time.perf_counter() - start > LIMIT:
                    raise SystemExit("`make serve` did not get to serve a page; run it by hand to see why.")
                time.sleep(1)
            print(json.dumps({"seconds_to_first_page": round(time.perf_counter() - start)}))
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


if __name__ == "__main__":
    main()
