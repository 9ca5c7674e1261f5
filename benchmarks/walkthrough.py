"""Seconds from a table to a flow and back: 500 paths × 100 irregular times in 3-D, a process for each command."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser.test_walkthrough import observe  # noqa: E402

COMMANDS = {
    "check": ["check", "mydata.csv"],
    "fit": ["fit", "mydata.csv", "--out", "mine"],
    "generate": ["generate", "mine", "--ensemble", "500", "--times", "0:2:0.1", "--out", "made.csv"],
}


def timed(folder: Path, arguments: list[str]) -> dict[str, float]:
    """Seconds on the clock, and of the processor, which other programs on the machine do not change."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    began, used = time.perf_counter(), sum(os.times()[2:4])
    subprocess.run([sys.executable, "-m", "phibe", *arguments], cwd=folder, env=environment, check=True, stdout=-3)
    return {"wall": round(time.perf_counter() - began, 2), "processor": round(sum(os.times()[2:4]) - used, 2)}


with tempfile.TemporaryDirectory() as name:
    observe().save(Path(name) / "mydata.csv")
    seconds = {stage: timed(Path(name), arguments) for stage, arguments in COMMANDS.items()}
    size = round((Path(name) / "mydata.csv").stat().st_size / 2**20, 2)
    total = {kind: round(sum(stage[kind] for stage in seconds.values()), 2) for kind in ("wall", "processor")}
    print(json.dumps({"megabytes": size, "seconds": seconds, "total": total}, indent=2))
