"""A real browser on what `make serve` and `make lab` serve.

For a test of an app or a page:
    def test_something(served, page):
        page.goto(f"{served}/flow_explorer")

`served`  the address of a running `make serve`, without a slash at the end.
`page`    a fresh Playwright page. When the test ends it fails if the page asked for anything outside this machine, if a
          response was an error, or if the console showed an error. `page.seen` holds what was recorded so far.
          `watched` gives a page like it to a fixture that several tests share.
`lab`     a running `make lab` on a copy of the chapters: `lab.url` opens it, token included.

All of them end with the tests of this folder, so that nothing of Playwright's event loop reaches other tests.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import sync_playwright

from browser.chromium import find

ROOT = Path(__file__).resolve().parents[2]
HERE = {"localhost", "127.0.0.1", "[::1]", "::1"}
# The resolver rule makes an outside request fail at once on any machine; the other switches keep Chromium silent.
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost",
]


@dataclass
class Seen:
    """What a page did that it should not have done."""

    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https", "ws", "wss"} and parts.hostname not in HERE:
            self.outside.append(url)

    def response(self, status: int, url: str) -> None:
        if status >= 400:
            self.errors.append(f"{status} {url}")

    def console(self, kind: str, text: str) -> None:
        if kind == "error":
            self.errors.append(text)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(command: list[str], url: str, log: Path, env: dict[str, str] | None = None):
    """Runs a server until the block ends; it and all its children are then gone. Waits for its first answer."""
    with log.open("w", encoding="utf8") as output:
        server = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True, env={**os.environ, **(env or {})}
        )
    try:
        wait_for(url, server, log)
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_for(url: str, server: subprocess.Popen, log: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"no answer from {url}:\n{log.read_text('utf8')[-4000:]}", pytrace=False)


@pytest.fixture(scope="package")
def served(book, tmp_path_factory) -> str:
    """The address of a running `make serve`."""
    port = free_port()
    log = tmp_path_factory.mktemp("serve") / "log"
    with running(["make", "serve", f"PORT={port}"], f"http://localhost:{port}/", log):
        yield f"http://localhost:{port}"


class Lab(NamedTuple):
    url: str
    folder: Path


@pytest.fixture(scope="package")
def lab(tmp_path_factory) -> Lab:
    """A running `make lab` on a copy of the chapters, with no settings of the person who runs the tests."""
    port, place = free_port(), tmp_path_factory.mktemp("lab")
    chapters = Path(shutil.copytree(ROOT / "notebooks", place / "notebooks"))
    shutil.copy(ROOT / "jupytext.toml", chapters)
    options = f"--no-browser --port={port} --IdentityProvider.token=test --LabApp.expose_app_in_browser=True"
    own = {name: str(place / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")}
    command = ["make", "lab", f"LAB_FOLDER={chapters}", f"LAB_OPTIONS={options}"]
    with running(command, f"http://localhost:{port}/api", place / "log", own):
        yield Lab(f"http://localhost:{port}/lab?token=test", chapters)


@pytest.fixture(scope="package")
def chromium():
    """A headless browser, closed after the tests of this folder."""
    path = find()
    if path is None:
        pytest.fail("no Chromium found; `make browser` installs one", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=SWITCHES)
        yield browser
        browser.close()


@contextmanager
def watched(chromium):
    """A fresh page that fails at the end for outside requests, error responses and console errors."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(120_000)  # the machine may be busy with other things
    seen = Seen()
    context.on("request", lambda request: seen.request(request.url))
    context.on("response", lambda response: seen.response(response.status, response.url))
    context.on("console", lambda message: seen.console(message.type, message.text))
    context.on("weberror", lambda error: seen.errors.append(str(error.error)))
    page = context.new_page()
    page.on("websocket", lambda socket: seen.request(socket.url))
    page.seen = seen
    yield page
    context.close()
    assert not seen.outside, f"the page asked for {seen.outside}"
    assert not seen.errors, "the browser reported\n" + "\n".join(seen.errors)


@pytest.fixture
def page(chromium):
    with watched(chromium) as page:
        yield page
