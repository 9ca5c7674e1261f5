"""Fixtures that several test files share."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

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


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Several processes make nothing twice: all that needs the book goes to one of them, first, else a file does."""
    return Shared(config, log)


class Shared(LoadScopeScheduling):
    BOOK = ("tests/browser/", "tests/test_book.py", "tests/test_notebooks.py")

    def _split_scope(self, nodeid: str) -> str:
        return "book" if nodeid.startswith(self.BOOK) else nodeid.partition("::")[0]
