"""The command for new trajectories: generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phibe.cli.data import KINDS, add_reading, layout
from phibe.cli.options import Options
from phibe.ensembles import draw_states, fit_density, generate_with_density, states_at
from phibe.evaluation import method_for, open_source
from phibe.files import read_arrays
from phibe.flow import Flow
from phibe.integrators import METHODS
from phibe.io import PATHS, TIMES, numbers, open_data, read_csv, save_data
from phibe.training.runs import open_flow, read_config
from phibe.trajectories import Label, Trajectories

WRITTEN = (".csv", ".npz", ".npy", ".nc", ".zarr")


def generate(arguments: list[str]) -> None:
    options = Options(
        "generate", "Trajectories of a fitted flow.", "RUN (--from START | --paths-of DATA | --ensemble N) --out FILE"
    )
    options.add("run", str, help="the folder of a run")
    options.add("--from", str | None, None, help="states to start from: a .csv of coordinates, or an array (n, *state)")
    options.add("--paths_of", str | None, None, help=f"{KINDS}: start where they are at the first of the times")
    options.add("--ensemble", int | None, None, help="so many starts, drawn from the data at the first of the times")
    options.add(
        "--times", str | None, None, help="0:1:0.1 (first:last:step) or 0,0.5,2; the first is that of the start"
    )
    options.add("--method", str, "auto", choices=("auto", *METHODS), help="how to integrate; auto suits the objective")
    options.add("--substeps", int | None, None, help="steps between two times (default: none longer than the data's)")
    options.add("--extrapolate", bool, False, help="go on beyond the times that the flow was fitted on")
    options.add("--log_density", bool, False, help="write log ρ along each path too")
    options.add("--seed", int, 0, help="of the draw of an ensemble")
    options.add("--out", str | None, None, help="the .csv, .npz, .npy, .nc or .zarr to write")
    add_reading(options)
    given = options.parse(arguments)
    if sum(map(bool, (given["from"], given.paths_of, given.ensemble))) != 1 + bool(given.paths_of and given.ensemble):
        raise ValueError("`phibe generate` needs one of --from START, --paths-of DATA and --ensemble N.")
    if not given.out or Path(given.out).suffix not in WRITTEN:
        raise ValueError(f"`phibe generate` needs --out, a file that ends in {', '.join(WRITTEN)}; got {given.out!r}.")
    flow = open_flow(given.run)
    data = _data(given)
    starts, times = _starts(given, data)
    made, more = _carried(given, flow, starts, times, data)
    print(f"{save_data(made, given.out, **more)}: {made}")


def _data(given: Any) -> Trajectories | None:
    """The trajectories to start from, or to know the density of: those named, or those of the run."""
    if given.paths_of:
        return open_data(given.paths_of, **layout(given))
    if not given.ensemble and not given.log_density:
        return None
    return open_source(given.run)


def _starts(given: Any, data: Trajectories | None) -> tuple[Tensor, Tensor]:
    """States to start from, and the times to go through."""
    times = parse_times(given.times) if given.times else None
    if given["from"]:
        starts = read_starts(Path(given["from"]))
        if times is None:
            raise ValueError("`phibe generate` needs --times, e.g. --times 0:1:0.1: the first is that of the start.")
        return starts, times
    assert data is not None
    if times is None:
        times = data.times if data.shared_times else torch.linspace(*data.interval, data.states.shape[1]).double()
    starts = states_at(data, float(times[0]))
    if not len(starts):
        raise ValueError(
            f"No path was observed near t = {float(times[0]):g}; the data covers {data.interval[0]:g} to "
            f"{data.interval[1]:g}. Begin --times there."
        )
    if given.ensemble:
        starts = draw_states(starts, given.ensemble, seed=given.seed)
    return starts, times


def _carried(
    given: Any, flow: Flow, starts: Tensor, times: Tensor, data: Trajectories | None
) -> tuple[Trajectories, dict[str, Tensor]]:
    objective = read_config(given.run).get("objective", {}).get("name", "")
    method = method_for(objective) if given.method == "auto" else given.method
    how = {"method": method, "substeps": given.substeps, "extrapolate": given.extrapolate}
    if not given.log_density:
        return flow.generate(starts, times, progress=True, **how), {}
    if Path(given.out).suffix == ".npy":
        raise ValueError("A .npy holds the states alone; with --log-density write a .csv, .npz, .nc or .zarr.")
    assert data is not None
    law = fit_density(states_at(data, float(times[0])))
    print(f"log-density at t = {float(times[0]):g}: {law.words}")
    made, log_density = generate_with_density(flow, starts, times, start=law.log_density, **how)
    return made, {"log_density": log_density}


def read_starts(path: Path) -> Tensor:
    """States (n, *state): the columns of a table that are no path and no time, or an array."""
    if path.suffix == ".csv":
        if not path.exists():
            raise ValueError(f"There is no file {path}.")
        table = read_csv(path)
        names = [name for name in table.columns if Label.parse(name).name.lower() not in (*PATHS, *TIMES)]
        return torch.from_numpy(np.stack([numbers(table, name, path) for name in names], axis=1))
    arrays = read_arrays(path)
    name = "x0" if "x0" in arrays else next(iter(arrays), "x0")
    if "times" in arrays or (len(arrays) != 1 and name != "x0"):
        raise ValueError(
            f"{path} must hold one array x0 of states; it holds {sorted(arrays)}. Trajectories? Use --paths-of."
        )
    return torch.as_tensor(arrays[name].copy())


def parse_times(text: str) -> Tensor:
    """`first:last:step`, both ends included, or values between commas."""
    try:
        if ":" not in text:
            return torch.tensor([float(part) for part in text.strip("[]() ").split(",")], dtype=torch.float64)
        first, last, step = (float(part) for part in text.split(":"))
        count = round((last - first) / step)
        if count < 1 or abs(first + count * step - last) > 1e-6 * abs(step):
            raise ValueError
        return torch.linspace(first, last, count + 1, dtype=torch.float64)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(
            f"--times must be first:last:step, a whole number of steps, as 0:1:0.1, or values as 0,0.5,2; got {text!r}."
        ) from None
