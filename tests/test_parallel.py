"""Parallel jobs: all are done, an error ends them, and none outlives the process that asked for them."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from phibe.experiments.training import run_all

pytestmark = pytest.mark.slow  # each starts processes that import torch

KILLED = """
import sys, time
from functools import partial
from pathlib import Path
from test_parallel import note_and_wait
from phibe.experiments.training import run_all

if __name__ == "__main__":
    run_all([partial(note_and_wait, Path(sys.argv[1]) / str(i)) for i in range(2)], workers=2)
"""


def note(file: Path) -> None:
    file.write_text(str(os.getpid()), encoding="utf8")


def note_and_wait(file: Path) -> None:
    note(file)
    time.sleep(600)


def fail() -> None:
    raise ValueError("no room")


def until(condition, seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text("utf8").split()[2] != "Z" if Path("/proc").exists() else True


def test_every_job_is_done_elsewhere(tmp_path):
    run_all([partial(note, tmp_path / str(i)) for i in range(3)], workers=2)
    assert os.getpid() not in {int(file.read_text("utf8")) for file in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 3


def test_the_first_error_is_raised():
    with pytest.raises(ValueError, match="no room"):
        run_all([fail, fail], workers=2)


def test_a_killed_run_leaves_no_workers(tmp_path):
    (tmp_path / "run.py").write_text(KILLED, encoding="utf8")
    notes = tmp_path / "notes"
    notes.mkdir()
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    asked = subprocess.Popen([sys.executable, tmp_path / "run.py", notes], env={**os.environ, "PYTHONPATH": paths})
    try:
        assert until(lambda: len([file for file in notes.iterdir() if file.read_text("utf8")]) == 2)
        workers = [int(file.read_text("utf8")) for file in notes.iterdir()]
        assert all(map(running, workers))
    finally:
        asked.kill()
        asked.wait()
    assert until(lambda: not any(map(running, workers)), 30)
