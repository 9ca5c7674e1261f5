"""`phibe serve`: the book is built behind the running server, and a port that is taken is named.

Everything is real here but the book: a copy of the checkout has a `jupyter-book` of its own, which waits to be told how
to end.
"""

import http.client
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phibe.cli import main, serving

ROOT = Path(__file__).resolve().parent.parent
JUPYTER_BOOK = """#!/bin/sh
echo "reading sources: <intro>"; echo built >> builds; mkdir -p _build/html
while [ ! -e verdict ]; do touch beat; sleep 0.05; done
echo "page $(cat verdict)" > _build/html/index.html; echo "last message: $(cat verdict)" >&2
exit $(cat verdict)
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of what `phibe serve` reads, with an environment whose jupyter-book ends as the file `verdict` says."""
    for name in ("phibe", "apps"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "book").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copytree(ROOT / "book" / "_static", tmp_path / "book" / "_static")
    shutil.copy(ROOT / "book" / "build.py", tmp_path / "book")
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "lib").symlink_to(Path(sys.prefix) / "lib")
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", tmp_path)
    (tmp_path / "bin" / "jupyter-book").write_text(JUPYTER_BOOK, "utf8")
    (tmp_path / "bin" / "jupyter-book").chmod(0o755)
    return tmp_path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(checkout: Path, ended_by: signal.Signals = signal.SIGTERM) -> Iterator["Server"]:
    """`phibe serve` in a process of its own, ended by a signal to that process alone."""
    server = Server(checkout)
    try:
        yield server
    finally:
        server.process.send_signal(ended_by)
        server.process.wait(20)


def heeds_interrupts() -> None:
    """A shell lets what it starts in the background ignore Ctrl-C, and so all that the tests start there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Server:
    def __init__(self, checkout: Path):
        self.port, self.log = free_port(), checkout / f"terminal-{time.monotonic_ns()}"
        command = [checkout / "bin" / "python", "-m", "phibe", "serve", "--port", str(self.port)]
        with self.log.open("w", encoding="utf8") as log:
            self.process = subprocess.Popen(command, cwd=checkout, stdout=log, stderr=log, preexec_fn=heeds_interrupts)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("localhost", self.port, timeout=20)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def until(self, path: str, text: str) -> tuple[int, str]:
        """The first answer that has the text."""
        for _ in range(600):
            try:
                status, page = self.get(path)
                if text in page:
                    return status, page
            except OSError:
                assert self.process.poll() is None, self.log.read_text("utf8")
            time.sleep(0.1)
        pytest.fail(f"{path} never had {text!r}:\n{self.log.read_text('utf8')[-3000:]}", pytrace=False)


@pytest.mark.slow
def test_a_page_waits_for_the_book_and_gives_way_to_it(checkout):
    with running(checkout) as server:
        status, page = server.until("/book/notebooks/01.html", "reading sources: &lt;intro&gt;")
        assert status == 202 and 'http-equiv="refresh"' in page and "being built" in page
        assert "The book is being built" in server.get("/")[1]
        assert server.get("/book/_static/logo.svg")[0] == 200
        (checkout / "verdict").write_text("0", "utf8")
        assert server.until("/book/", "page 0")[0] == 200
        assert "being built" not in server.until("/", "The book")[1]
        assert server.get("/book/none.html")[0] == 404
    assert "book: built in" in server.log.read_text("utf8")


@pytest.mark.slow
def test_an_old_book_is_shown_until_the_new_one_is_there(checkout):
    (checkout / "verdict").write_text("0", "utf8")
    build = [checkout / "bin" / "python", "book/build.py"]
    assert subprocess.run(build, cwd=checkout, capture_output=True).returncode == 0
    (checkout / "_build" / "html" / "index.html").write_text("old page", "utf8")
    (checkout / "verdict").unlink()
    (checkout / "phibe" / "new.py").write_text("", "utf8")
    with running(checkout) as server:
        assert "until then, this is the previous one" in server.until("/", "being built")[1]
        assert server.get("/book/") == (200, "old page")
        (checkout / "verdict").write_text("0", "utf8")
        assert server.until("/book/", "page 0")[0] == 200
    assert not (checkout / "_build" / "previous").exists()


@pytest.mark.slow
def test_a_build_that_fails_is_shown_on_the_page_and_on_the_terminal(checkout):
    (checkout / "verdict").write_text("3", "utf8")
    with running(checkout) as server:
        _, page = server.until("/book/", "The build of the book failed")
        assert "last message: 3" in page and "page 3" not in page
        assert "The build of the book failed" in server.get("/")[1]
    assert "last message: 3" in server.log.read_text("utf8")
    assert "book: FAILED" in server.log.read_text("utf8")


@pytest.mark.slow
def test_a_build_that_cannot_start_is_one_line_and_the_apps_answer(checkout):
    (checkout / "bin" / "jupyter-book").unlink()
    with running(checkout) as server:
        server.until("/book/", "The build of the book failed")
        assert "Explore" in server.get("/")[1]
    terminal = server.log.read_text("utf8")
    assert "book: it cannot be built: [Errno 2]" in terminal and "Traceback" not in terminal


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
def test_the_build_ends_with_the_server(checkout, ended_by):
    with running(checkout, ended_by) as server:
        server.until("/book/", "reading sources")
        assert beats(checkout)
    for _ in range(40):
        if not beats(checkout):
            break
    else:
        pytest.fail("the build outlived its server by 20 s")
    (checkout / "verdict").write_text("0", "utf8")
    build = [checkout / "bin" / "python", "book/build.py"]
    assert "book: built" in subprocess.run(build, cwd=checkout, capture_output=True, encoding="utf8", timeout=20).stdout


def beats(checkout: Path) -> bool:
    """Whether jupyter-book is still at work."""
    (checkout / "beat").unlink(missing_ok=True)
    time.sleep(0.5)
    return (checkout / "beat").exists()


@pytest.mark.slow
def test_two_servers_of_a_checkout_build_the_book_once(checkout):
    with running(checkout) as first, running(checkout) as second:
        first.until("/book/", "reading sources")
        second.until("/book/", "reading sources")
        (checkout / "verdict").write_text("0", "utf8")
        assert first.until("/book/", "page 0")[0] == second.until("/book/", "page 0")[0] == 200
        for _ in range(200):
            if "up to date" in first.log.read_text("utf8") + second.log.read_text("utf8"):
                break
            time.sleep(0.1)
    assert (checkout / "builds").read_text("utf8") == "built\n"


# -- before anything is started ----------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch) -> list:
    """What `serve` would start: the commands of the build and of the server."""
    commands = []
    monkeypatch.setattr(subprocess, "Popen", lambda command: commands.append(command))
    monkeypatch.setattr(os, "execv", lambda program, command: commands.append(command))
    monkeypatch.setattr(os, "chdir", lambda folder: None)
    monkeypatch.setenv("PHIBE_RUNS", "")
    return commands


def test_the_server_is_for_this_machine_alone(started, capsys):
    port = free_port()
    assert main(["serve", "--port", str(port)]) == 0
    build, server = started
    assert build[1:] == ["book/build.py", "--for", str(os.getpid())]
    assert server[server.index("--address") + 1] == "localhost"
    origins = {part for part in server if part.endswith(f":{port}")}
    assert origins == {f"localhost:{port}", f"127.0.0.1:{port}"}
    assert f"http://localhost:{port}" in capsys.readouterr().out


def test_a_busy_port_is_one_line_with_the_next_free_one(started, monkeypatch, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert serving.busy(port)
        taken = {port, port + 1, port + 2}
        monkeypatch.setattr(serving, "busy", lambda number: number in taken)
        assert main(["serve", "--port", str(port)]) == 2
    answer = f"phibe: port {port} is busy; try --port {port + 3} (make serve PORT={port + 3}).\n"
    assert capsys.readouterr().err == answer and not started
    monkeypatch.undo()
    assert not serving.busy(port)


def test_without_panel_the_message_says_what_to_install(started, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["serve"]) == 2
    assert "pip install" in capsys.readouterr().err and not started


@pytest.mark.parametrize("port", ["0", "65536"])
def test_a_port_that_cannot_be_is_refused(started, capsys, port):
    assert main(["serve", f"--port={port}"]) == 2
    assert "--port must be between 1 and 65535" in capsys.readouterr().err and not started
