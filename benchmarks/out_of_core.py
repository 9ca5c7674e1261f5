"""Peak memory of training on data of growing size: from memory, and from a Zarr store through its memory map.

Prints JSON. What counts is anonymous memory, which the kernel cannot take back; pages of a mapped file are its cache.
`python benchmarks/out_of_core.py 64 256 1024` chooses the sizes in megabytes.
"""

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import zarr
from torch import nn

from phibe.io import Layout, open_data, read_data
from phibe.training.config import FitConfig
from phibe.training.loop import fit_network

FRAMES, STATE = 32, (1, 64, 64)


class Stencil(nn.Module):
    """The smallest network on fields: one convolution, so that memory is that of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.stencil = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.stencil(x)


def write(store: Path, megabytes: int) -> None:
    """A store of random fields of that size, written a few paths at a time."""
    path_bytes = FRAMES * 4 * STATE[1] * STATE[2]
    paths = megabytes * 2**20 // path_bytes
    group = zarr.open_group(store, mode="w")
    shape, chunks = (paths, FRAMES, *STATE), (8, FRAMES, *STATE)
    states = group.create_array("states", shape=shape, chunks=chunks, dtype="float32", compressors=None)
    group.create_array("times", data=torch.linspace(0, 1, FRAMES).double().numpy())
    for start in range(0, paths, 8):
        states[start : start + 8] = torch.randn(min(8, paths - start), *shape[1:]).numpy()


class Anonymous(threading.Thread):
    """Watches this process's anonymous memory; `peak` in megabytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0

    def run(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text("utf8").splitlines():
                if line.startswith("RssAnon"):
                    self.peak = max(self.peak, int(line.split()[1]) / 1024)
            time.sleep(0.005)


def train(store: Path, way: str) -> dict[str, float]:
    """Open the data one way or the other, train a hundred steps, and tell what it took."""
    torch.set_num_threads(1)
    watch = Anonymous()
    watch.start()
    began = time.perf_counter()
    data = open_data(store) if way == "disk" else read_data(store, Layout())[0]
    opened = time.perf_counter()
    config = FitConfig(steps=100, batch=32, evaluate_every=100)
    fit_network(data, Stencil(), "regression", config=config, out=store.parent / way, progress=False)
    whole = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "anonymous_megabytes": round(watch.peak),
        "resident_megabytes": round(whole),
        "open_seconds": round(opened - began, 2),
        "fit_seconds": round(time.perf_counter() - opened, 2),
    }


def measure(megabytes: int, way: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "data.zarr"
        write(store, megabytes)
        done = subprocess.run(
            [sys.executable, __file__, "--one", store, way], stdout=subprocess.PIPE, encoding="utf8", check=True
        )
    return {"data_megabytes": megabytes, **json.loads(done.stdout)}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(train(Path(sys.argv[2]), sys.argv[3])))
    else:
        sizes = [int(size) for size in sys.argv[1:]] or [32, 128, 512]
        print(json.dumps({way: [measure(size, way) for size in sizes] for way in ("disk", "memory")}, indent=2))
