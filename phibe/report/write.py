"""A run's folder in, `quality.json` and `report.html` out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phibe.evaluation import Quality, assess, names_of, open_source, write_source
from phibe.files import replacing, write_json
from phibe.fitting import fit_closed
from phibe.flow import Flow
from phibe.linear.basis import Size
from phibe.networks import NETWORKS, build
from phibe.report.page import page
from phibe.training.config import FitConfig
from phibe.training.loop import fit_network
from phibe.training.runs import Metrics, open_flow, read_config
from phibe.training.sampling import split_paths
from phibe.trajectories import Trajectories

PATIENCE = 120.0
"""Seconds of training up to which a network is fitted again without being asked for, to calibrate it."""


def write_report(
    folder: str | Path,
    data: Trajectories | None = None,
    *,
    source: str | Path | None = None,
    calibrate: bool | None = None,
    network: nn.Module | None = None,
    **options: Any,
) -> Quality:
    """Write what the run is worth, `quality.json` and `report.html`, into its folder; the record of it.

    `data` is what the run was fitted to, by default the file that it remembers; `source` is that file, to be remembered
    with the `options` it was read with. `calibrate` fits the same class to every other observation, to check the times
    in between: by default whenever that takes no more than two minutes. A run of a module of your own needs it, as
    `network`.

    >>> import phibe, tempfile
    >>> data = phibe.OU.reversible().simulate(paths=60, times=[0.0, 0.1, 0.2, 0.3, 0.4], seed=0)
    >>> folder = tempfile.mkdtemp()
    >>> flow = phibe.fit(data, "affine", "symmetric", out=folder, progress=False)
    >>> phibe.write_report(folder, data, calibrate=False).verdict
    'usable with care'
    """
    folder = Path(folder)
    about, flow = read_config(folder), open_flow(folder, network=network)
    data = open_source(folder) if data is None else data
    if source is not None:
        write_source(folder, data, source, **options)
    history = Metrics(folder / "metrics.jsonl").read()
    held = _held_out(about, len(data))
    again, note = _refitted(about, data, calibrate, history)
    kind = about.get("objective", {"name": "phibe"})
    if history and held is not None:
        note = [*note, "The held-out paths have also told which weights to keep: to them the fit is not quite blind."]
    facts = {"objective": kind["name"], "noise": kind.get("noise"), "refitted": again, "notes": note}
    quality, views = assess(flow, data, held, **facts)
    write_json(folder / "quality.json", quality.as_json())
    with replacing(folder / "report.html") as partial:
        facts = {"about": about, "history": history, "name": folder.name, "names": names_of(data)}
        partial.write_text(page(quality, views, **facts), "utf8", "surrogateescape")
    return quality


def _held_out(about: dict[str, Any], paths: int) -> Tensor | None:
    """The paths that the fit kept aside; None if it saw all of them."""
    config = about.get("config", {})
    if not config.get("held_out") or about.get("held_out"):
        return None
    return split_paths(paths, config["held_out"], seed=config.get("seed", 0))[1]


def _refitted(
    about: dict[str, Any], data: Trajectories, calibrate: bool | None, history: list[dict[str, Any]]
) -> tuple[Flow | None, list[str]]:
    """The same class fitted to every other observation, or why that was not done."""
    seconds = history[-1].get("seconds", 0.0) if history else 0.0
    if calibrate is None and seconds > PATIENCE:
        return None, [
            f"Intermediate times were not checked: training took {seconds:.0f} s, and the check trains once more. "
            "Ask for it: `phibe report RUN --calibrate true`."
        ]
    if calibrate is False:
        return None, ["Intermediate times were not checked: it was not asked for."]
    try:
        thin = data.coarsen(2)
    except ValueError:
        return None, ["Intermediate times cannot be checked: some paths have fewer than three observations."]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the warnings of the fit itself were shown when it was made
            return _fit_again(about, thin), []
    except (ValueError, ArithmeticError) as reason:
        return None, [f"Intermediate times were not checked: every other observation could not be fitted. {reason}"]


def _fit_again(about: dict[str, Any], data: Trajectories) -> Flow:
    """What the run did, to other data: the same held-out paths, the same candidates or network, the same settings."""
    name, objective = about["network"]["name"], about["objective"]["name"]
    config = FitConfig(**about["config"])
    if "trials" in about:
        tried = [Size(**{field: trial[field] for field in Size._fields}) for trial in about["trials"]]
        return fit_closed(data, objective, candidates=tried, config=config)
    if name not in NETWORKS:
        raise ValueError(f"It is of a network of your own, {name}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build(name, about["state_shape"], **about["network"]["arguments"])
    return fit_network(data, network, objective, config=config, progress=False)
