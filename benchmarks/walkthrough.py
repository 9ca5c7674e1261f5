"""Seconds from a fresh clone to a flow of one's own data: install, check, fit with its report, generate. Prints JSON.

The data is a table of 500 paths × 100 irregular times in 3-D. The clone is of the last commit, in a temporary folder;
package downloads come from the client's cache where it has one. The browser opens the report in
tests/browser/test_walkthrough.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phibe.io import save_data

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser.test_walkthrough import observe  # noqa: E402

COMMANDS = {
    "check": ["check", "mydata.csv"],
    "fit": ["fit", "mydata.csv", "--out", "mine"],
    "generate": ["generate", "mine", "--ensemble", "500", "--times", "0:2:0.1", "--out", "made.csv"],
}


def timed(command: list[str | Path], folder: Path) -> dict[str, float]:
    """Seconds on the clock, and of the processor, which other programs on the machine do not change."""
    began, used = time.perf_counter(), sum(os.times()[2:4])
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return {"wall": round(time.perf_counter() - began, 1), "processor": round(sum(os.times()[2:4]) - used, 1)}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, clone = Path(name), Path(name) / "phibe"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        save_data(observe(), folder / "mydata.csv")
        seconds = {"install": timed(["make", ".venv/.ready"], clone)}
        phibe = clone / ".venv" / "bin" / "phibe"
        seconds |= {stage: timed([phibe, *arguments], folder) for stage, arguments in COMMANDS.items()}
        total = {kind: round(sum(stage[kind] for stage in seconds.values()), 1) for kind in ("wall", "processor")}
        print(json.dumps({"seconds": seconds, "total": total}, indent=2))


if __name__ == "__main__":
    main()
