"""The runner of the tests: a process that dies, or a test that hangs, ends the run at once and is named."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
(PROCESSES,) = re.findall(r"^PYTEST := .* -m pytest (.*)$", (ROOT / "Makefile").read_text("utf8"), re.MULTILINE)

OTHERS = """
import time
import pytest

@pytest.mark.parametrize("n", range(400))
def test_waits(n):
    time.sleep(0.5)
"""
SINGLE = "import os, signal, time\n\ndef test_well():\n    pass\n\ndef test_deliberate():\n    {}\n"


def run(folder: Path, act: str, *options: str, others: str = OTHERS) -> subprocess.CompletedProcess[str]:
    """Two files of tests in a folder of their own, run as `make test` runs this project's."""
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_a.py").write_text(SINGLE.format(act), encoding="utf8")
    (folder / "tests" / "test_b.py").write_text(others, encoding="utf8")
    command = [sys.executable, "-m", "pytest", *shlex.split(PROCESSES), "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf8", timeout=60)


def test_tests_that_pass_end_green(tmp_path):
    done = run(tmp_path, "pass", others="def test_well():\n    pass\n")
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("act", ["os.kill(os.getpid(), signal.SIGILL)", "os._exit(0)"])
def test_a_process_that_dies_ends_the_run_and_its_test_is_named(tmp_path, act):
    done = run(tmp_path, act)  # within a minute, though the tests beside it would take more than three
    assert done.returncode == 1, done.stdout
    assert "crashed while running 'tests/test_a.py::test_deliberate" in done.stdout


def test_a_test_that_hangs_ends_the_run_and_is_named(tmp_path):
    done = run(tmp_path, "time.sleep(600)", "--timeout=3")
    assert done.returncode == 1, done.stdout
    assert "crashed while running 'tests/test_a.py::test_deliberate" in done.stdout
