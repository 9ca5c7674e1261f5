"""Builds the book into `_build/html`: strictly, offline, and only when something it is made of has changed.

    python book/build.py               build if stale
    python book/build.py --force       build in any case
    python book/build.py --for PID     build if stale, in the background of the server PID, and end with it

Two fingerprints are kept in `_build/`. One covers everything that the book is made of: while it matches, nothing is
built. The other covers what executed cells import and read, the package and the artifacts: when it changes, the
execution cache, which only looks at the text of a notebook, is dropped. While a stale book is replaced, the old one
stays readable in `_build/previous`. The messages of the last build are in `_build/book.log`.
"""

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
HTML, PREVIOUS, LOG, LOCK = (BUILD / name for name in ("html", "previous", "book.log", ".lock"))
BOOK_STAMP, CACHE_STAMP = BUILD / "book.stamp", BUILD / "cache.stamp"
COMPUTED_FROM = ["phibe", "artifacts", "constraints.txt"]
MADE_OF = [*COMPUTED_FROM, "book", "notebooks", "_config.yml", "_toc.yml"]


def fingerprint(names: list[str]) -> str:
    """A hash of the names and contents of all files under the named places, caches and hidden ones left out."""
    found = (path for name in names for path in [ROOT / name, *(ROOT / name).rglob("*")])
    relative = sorted(path.relative_to(ROOT) for path in found if path.is_file())
    digest = hashlib.sha256()
    for path in relative:
        if not any(part == "__pycache__" or part.startswith(".") for part in path.parts):
            digest.update(f"{path.as_posix()} {(ROOT / path).stat().st_size}\n".encode())
            digest.update((ROOT / path).read_bytes())
    return digest.hexdigest()


def matches(stamp: Path, value: str) -> bool:
    """Whether an earlier run left this value in the stamp file."""
    return stamp.exists() and stamp.read_text("utf8") == value


# -- what a server asks ------------------------------------------------------------------------------------------------


def finished() -> Path | None:
    """The folder of the book: the last one that was built without error; None if there is none."""
    if BOOK_STAMP.exists() and HTML.exists():
        return HTML
    return PREVIOUS if PREVIOUS.exists() else None


def building() -> bool:
    """Whether some process is building the book now."""
    try:
        with LOCK.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def messages(count: int) -> str:
    """The last lines that the last build wrote."""
    lines = LOG.read_text("utf8", errors="replace").splitlines() if LOG.exists() else []
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines[-count:]))


# -- the build ---------------------------------------------------------------------------------------------------------


@contextmanager
def locked() -> Iterator[None]:
    """Processes that want the book at the same time build it once: the others wait here."""
    BUILD.mkdir(exist_ok=True)
    if building():
        print("book: another process is building it; waiting", flush=True)
    with LOCK.open("w", encoding="utf8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def clear() -> None:
    """Sets a finished book aside and drops the rest: a second strict build would pass where the first one failed."""
    if finished() == HTML:
        shutil.rmtree(PREVIOUS, ignore_errors=True)
        BOOK_STAMP.unlink()
        HTML.rename(PREVIOUS)
    BOOK_STAMP.unlink(missing_ok=True)
    for leftover in ("html", ".doctrees"):
        shutil.rmtree(BUILD / leftover, ignore_errors=True)


def build(quiet: bool) -> int:
    """One strict build; returns the exit code and shows the traceback of a cell that failed."""
    clear()
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ".", "-W", "-n", "--keep-going"]
    settings = {"JUPYTER_PREFER_ENV_PATH": "1", "PANEL_INLINE": "false", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    readable = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1"}
    quick = {
        "OMP_NUM_THREADS": "1"
    }  # small tensors: a second thread costs more than it brings, above all on busy cores
    with LOG.open("w", encoding="utf8") as log:
        outputs = [log] if quiet else [log, sys.stdout]
        code = run(command, {**quick, **os.environ, **settings, **readable}, outputs)
        for report in sorted((HTML / "reports").rglob("*.err.log")):
            cell = report.read_text("utf8").rpartition("An error occurred while executing the following cell:")[2]
            write(f"\n{report.relative_to(ROOT)}:{cell}\n", outputs)
    return code


def run(command: list, env: dict[str, str], outputs: list) -> int:
    """Runs a command, and writes each line that it says to all outputs at once; returns its exit code."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, env=env, encoding="utf8", errors="replace", **pipes) as child:
        for line in child.stdout:
            write(line, outputs)
    return child.returncode


def write(text: str, outputs: list) -> None:
    for output in outputs:
        output.write(text)
        output.flush()


def renew(force: bool, quiet: bool) -> int:
    """Builds the book if it is stale, or in any case; returns the exit code."""
    made_of, computed_from = fingerprint(MADE_OF), fingerprint(COMPUTED_FROM)
    if finished() == HTML and matches(BOOK_STAMP, made_of) and not force:
        print("book: up to date")
        return 0
    print(f"book: being built, which takes some minutes; messages are in {LOG.relative_to(ROOT)}", flush=True)
    start = time.perf_counter()
    if not matches(CACHE_STAMP, computed_from):
        shutil.rmtree(BUILD / ".jupyter_cache", ignore_errors=True)
        CACHE_STAMP.write_text(computed_from, "utf8")
    code = build(quiet)
    if code == 0:
        BOOK_STAMP.write_text(made_of, "utf8")
        shutil.rmtree(PREVIOUS, ignore_errors=True)
    elif quiet:
        print(messages(40))
    print(f"book: {'built' if code == 0 else 'FAILED'} in {time.perf_counter() - start:.0f} s", flush=True)
    return code


def stay_behind(server: int) -> None:
    """Gives way to the server that started this process; when the server is gone, this ends and all it has started."""
    os.setpgrp()
    os.nice(10)
    signal.signal(signal.SIGTERM, end)

    def watch() -> None:
        while os.getppid() == server:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def end(*_: object) -> None:
    """Ends this process and its children: jupyter-book ends its kernel when asked to, but would go on without it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    sys.stdout.reconfigure(errors="replace")
    quiet = arguments[:1] == ["--for"]
    if quiet:
        stay_behind(int(arguments[1]))
    try:
        with locked():
            return renew("--force" in arguments, quiet)
    except OSError as error:  # a checkout that may only be read, a full disk, no jupyter-book
        print(f"book: it cannot be built: {error}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
