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
