"""Fixtures that several test files share."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def book() -> Path:
    """The folder of the built book; if it is stale, the strict build runs first, and its failure fails the test."""
    done = subprocess.run([sys.executable, ROOT / "book" / "build.py"], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        pytest.fail(
            f"the strict build of the book failed:\n{done.stdout[-6000:]}\n{done.stderr[-12000:]}", pytrace=False
        )
    return ROOT / "_build" / "html"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is shared is made once when several processes run the tests: all that needs the book stays together, and
    otherwise a file does."""
    for item in items:
        needs_book = "book" in getattr(item, "fixturenames", ()) or "browser" in item.path.parts
        item.add_marker(pytest.mark.xdist_group("book" if needs_book else item.path.stem))
