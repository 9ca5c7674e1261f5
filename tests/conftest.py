"""Fixtures that several test files share."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
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


@pytest.fixture(scope="module")
def from_apps() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the apps by its name, found as `panel serve` finds it: with their folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "apps"))
        yield importlib.import_module


# -- several processes: one begins with the book, and what else needs it comes last ------------------------------------

FIRST = ("browser/test_book", "test_book", "test_notebooks")
LAST = ("test_flow_explorer", "test_rollout_explorer", "test_spectrum_explorer", "test_video_explorer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parent.name == "browser" and item.path.stem in LAST)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """What tests of a file share is made once: a file goes to one process, and those around the book to the same."""
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "book" if file.removeprefix("tests/").removesuffix(".py") in FIRST else file
