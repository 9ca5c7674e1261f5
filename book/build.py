"""Builds the book into `_build/html`: strictly, offline, and only when something it is made of has changed.

    python book/build.py            build if stale
    python book/build.py --force    build in any case

Two fingerprints are kept in `_build/`. One covers everything that the book is made of: while it matches, nothing is
built. The other covers what executed cells import and read, the package and the artifacts: when it changes, the
execution cache, which only looks at the text of a notebook, is dropped.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
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
    return stamp.exists() and stamp.read_text() == value


def build() -> int:
    """One strict build; returns the exit code and shows the traceback of a cell that failed."""
    for leftover in ("html", ".doctrees"):  # a second strict build would pass where the first one failed
        shutil.rmtree(BUILD / leftover, ignore_errors=True)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ".", "-W", "-n", "--keep-going"]
    settings = {"JUPYTER_PREFER_ENV_PATH": "1", "PANEL_INLINE": "false", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    quick = {
        "OMP_NUM_THREADS": "1"
    }  # small tensors: a second thread costs more than it brings, above all on busy cores
    code = subprocess.run(command, cwd=ROOT, env={**quick, **os.environ, **settings}).returncode
    for report in sorted((BUILD / "html" / "reports").rglob("*.err.log")):
        cell = report.read_text("utf8").rpartition("An error occurred while executing the following cell:")[2]
        print(f"\n{report.relative_to(ROOT)}:{cell}", file=sys.stderr)
    return code


def main() -> int:
    made_of, computed_from = fingerprint(MADE_OF), fingerprint(COMPUTED_FROM)
    book_stamp, cache_stamp = BUILD / "book.stamp", BUILD / "cache.stamp"
    if matches(book_stamp, made_of) and "--force" not in sys.argv[1:]:
        print("book: up to date")
        return 0
    start = time.perf_counter()
    BUILD.mkdir(exist_ok=True)
    book_stamp.unlink(missing_ok=True)
    if not matches(cache_stamp, computed_from):
        shutil.rmtree(BUILD / ".jupyter_cache", ignore_errors=True)
        cache_stamp.write_text(computed_from)
    code = build()
    if code == 0:
        book_stamp.write_text(made_of)
    print(f"book: {'built' if code == 0 else 'FAILED'} in {time.perf_counter() - start:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
