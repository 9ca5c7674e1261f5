"""The affine fit of 50,000 paths × 2,000 times × 2 coordinates from a memory map, against one pass of `sum()` over it
and against the Gram matrix of each time by `einsum`.

Aims: at most 4 times the pass, no more than the Gram matrices, and below 1,500 MB at its peak, mapped pages included.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from phibe import OU, Trajectories
from phibe.linear.affine import fit_affine


def write_map(path: Path, *, paths: int, times: torch.Tensor, block: int = 2500) -> None:
    """Exact paths of the circulating process, simulated and written a block at a time."""
    states = np.lib.format.open_memmap(path, "w+", np.float32, (paths, len(times), 2))
    for i, start in enumerate(range(0, paths, block)):
        part = OU.nonreversible().simulate(paths=min(block, paths - start), times=times, seed=i)
        states[start : start + block] = part.states.numpy()
    states.flush()


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def peak_megabytes() -> float:
    """Most memory that this process ever held at once, with the pages of files that it has mapped."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def measure(path: Path, times: torch.Tensor, repeats: int) -> dict[str, float]:
    """In a process of its own, so that the peak is that of the fit and of nothing before it."""
    states = np.load(path, mmap_mode="r")
    before = peak_megabytes()
    data = Trajectories(states, times)
    fit_affine(data)  # the first pass fills the file cache
    peak = peak_megabytes()
    # In turn, so that whatever else the machine does falls on all alike.
    actions = {
        "sum": states.sum,
        "open": lambda: Trajectories(states, times),
        "fit": lambda: fit_affine(data),
        "gram": lambda: torch.einsum("nti,ntj->tij", data.states, data.states),
    }
    rounds = [{name: seconds(action) for name, action in actions.items()} for _ in range(repeats)]
    median = {name: statistics.median(r[name] for r in rounds) for name in actions}
    best = {name: min(r[name] for r in rounds) for name in actions}
    return {
        "ratio": round(median["fit"] / median["sum"], 2),
        "ratio_of_best": round(best["fit"] / best["sum"], 2),
        "ratio_to_gram": round(median["fit"] / median["gram"], 2),
        "fit_seconds": round(median["fit"], 3),
        "sum_seconds": round(median["sum"], 3),
        "gram_seconds": round(median["gram"], 3),
        "validation_seconds": round(median["open"], 3),
        "validation_ratio": round(median["open"] / median["sum"], 2),
        "peak_memory_mb": round(peak),
        "imports_memory_mb": round(before),
        "map_mb": round(states.nbytes / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", type=int, default=50_000)
    parser.add_argument("--times", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    times = torch.linspace(0, 1, options.times, dtype=torch.float64)
    if options.write:
        write_map(options.write, paths=options.paths, times=times)
    elif options.measure:
        print(json.dumps(measure(options.measure, times, options.repeats)))
    else:
        print(json.dumps(benchmark(options), indent=2))


def benchmark(options: argparse.Namespace) -> dict[str, object]:
    """Write in one process and measure in another: a process inherits the peak of the one that started it."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "states.npy")
        sizes = ["--paths", str(options.paths), "--times", str(options.times), "--repeats", str(options.repeats)]
        subprocess.run([sys.executable, __file__, "--write", path, *sizes], check=True)
        command = [sys.executable, __file__, "--measure", path, *sizes]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf8")
    setting = {"paths": options.paths, "times": options.times, "threads": torch.get_num_threads()}
    return {"benchmark": "affine_fit", **setting, **json.loads(done.stdout)}


if __name__ == "__main__":
    main()
