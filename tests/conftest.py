"""Fixtures that several test files share."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def book() -> Path:
    """The folder of the built book; if it is stale, the strict build runs first, and its failure fails the test."""
    done = subprocess.run([sys.executable, ROOT / "book" / "build.py"], capture_output=True, encoding="utf8", cwd=ROOT)
    if done.returncode:
        pytest.fail(
            f"the strict build of the book failed:\n{done.stdout[-6000:]}\n{done.stderr[-12000:]}", pytrace=False
        )
    return ROOT / "_build" / "html"


@pytest.fixture(scope="module")
def from_apps() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the apps by its name, found as `panel serve` finds it: with their folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "apps"))
        yield importlib.import_module


# -- several processes: one begins with the book, and what else needs it comes last ------------------------------------

FIRST = "browser/test_book"
LATER = ("test_book", "test_notebooks")
BOOK = {"book", "served", "lab", "page"}
BUILD = pytest.mark.timeout(1800)  # seconds: the first test that needs the book waits until it is built


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in _marks(item):
            item.add_marker(mark)
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """What builds the book comes first; what waits for it, in another process, comes last."""
    place = _place(item)
    return 0 if place == FIRST else 2 if place in LATER or BOOK & {*item.fixturenames} else 1


def _place(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("tests/")


def _marks(item: pytest.Item) -> Iterator[pytest.MarkDecorator]:
    """What a test needs, for `-m`, and the time limit of one that may have to wait for the book."""
    place = _place(item)
    if place.startswith("browser/"):
        yield pytest.mark.browser
    if place in (FIRST, *LATER) or "book" in item.fixturenames:
        yield pytest.mark.book
    if BOOK & {*item.fixturenames}:
        yield BUILD


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """A process that died ends the run at once; the message names the test that it was running."""
    pytest.exit(f"{report.longrepr}, or was ended at its time limit; run alone, it says where", returncode=1)
