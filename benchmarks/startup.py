"""How long each start takes, imports included, as multiples of what cannot be less. Prints JSON.

Help, lists and usage errors are compared with an interpreter that does nothing, a first affine fit with the import of
torch. Each is the best of several fresh processes, taken in turn so that a busy machine is busy for all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 7
PHIBE = str(Path(sys.executable).with_name("phibe"))
FIT = """
import torch
from phibe import Trajectories
from phibe.linear.affine import fit_affine
x = torch.randn(50, 6, 2, dtype=torch.float64).cumsum(1)
fit_affine(Trajectories(x, torch.linspace(0, 1, 6, dtype=torch.float64)))
"""
STARTS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import torch": [sys.executable, "-c", "import torch"],
    "phibe --help": [PHIBE, "--help"],
    "phibe list": [PHIBE, "list"],
    "phibe fit --help": [PHIBE, "fit", "--help"],
    "a usage error": [PHIBE, "fit", "data.csv", "--stepz", "3"],
    "import phibe": [sys.executable, "-c", "import phibe"],
    "first affine fit": [sys.executable, "-c", FIT],
}
AGAINST = {name: "import torch" if name == "first affine fit" else "python -c pass" for name in list(STARTS)[2:]}


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    taken = [{name: seconds(command) for name, command in STARTS.items()} for _ in range(REPEATS)]
    best = {name: min(one[name] for one in taken) for name in STARTS}
    ratios = {f"{name} / {base}": round(best[name] / best[base], 2) for name, base in AGAINST.items()}
    print(json.dumps({"seconds": {name: round(s, 3) for name, s in best.items()}, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
