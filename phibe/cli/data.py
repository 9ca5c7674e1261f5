"""Commands on trajectories and runs: check, fit, report, evaluate, generate; fetch and convert, for published data."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phibe.cli import Options
from phibe.training.config import METHOD_NAMES, MISSING, MODELS, OBJECTIVE_NAMES, FitConfig

if TYPE_CHECKING:
    from torch import Tensor

    from phibe.evaluation import Quality
    from phibe.flow import Flow
    from phibe.trajectories import Trajectories

AUTOMATIC = ("steps", "batch", "ema", "held_out", "patience")
KINDS = "a .csv, .npz, .npy, .nc or .zarr of trajectories"
WRITTEN = (".csv", ".npz", ".npy", ".nc", ".zarr")
LAYOUT = ("path_column", "time_column", "columns", "time_step", "windows")


def add_reading(options: Options) -> None:
    """The options of `open_data`: how to read a file."""
    options.add("--missing", str, "error", choices=MISSING, help="what to do with missing values: drop the transitions")
    options.add("--path_column", str | None, None, help="column of a table that numbers or names the paths")
    options.add("--time_column", str | None, None, help="column of times")
    options.add("--columns", tuple[str, ...] | None, None, help="columns of the state, as x,y (default: all others)")
    options.add("--time_step", float | None, None, help="time between observations, for arrays that come without times")
    options.add("--windows", int | None, None, help="cut long paths into pieces of so many observations")


def layout(given: dict[str, Any]) -> dict[str, Any]:
    """What of these options was given, for `open_data`; plain JSON."""
    found = {name: given[name] for name in ("missing", *LAYOUT)}
    found["columns"] = list(given["columns"]) if given["columns"] else None
    return {name: value for name, value in found.items() if value not in (None, "error")}


def opened(path: str, how: dict[str, Any]) -> tuple[Trajectories, str]:
    """The data, and a sentence on its missing values."""
    from phibe.io import Layout, open_data, read_data

    if "missing" not in how:
        return open_data(path, **how), ""
    rest = {name: value for name, value in how.items() if name != "missing"}
    return read_data(path, Layout(**rest), missing=how["missing"])


# -- check, fit, report, evaluate --------------------------------------------------------------------------------------


def check(arguments: list[str]) -> None:
    options = Options("check", "What is in a file of trajectories, or in the folder of a run.", "DATA|RUN")
    options.add("path", str, help=f"{KINDS}, or a folder that `phibe fit` wrote")
    add_reading(options)
    given = options.parse(arguments)
    path = Path(given["path"])

    from phibe.diagnostics import diagnose
    from phibe.io import describe_data
    from phibe.objectives import estimate_noise

    if path.is_dir() and (path / "config.json").exists():
        return print(describe_run(path))
    data, note = opened(given["path"], layout(given))
    noise = f"{estimate_noise(data):g} (mean |Δx|²/Δt of a coordinate)"
    print(describe_data(data, path, noise=noise, missing=note))
    try:
        print(diagnose(data))
    except ValueError as reason:
        print(f"no diagnosis: {reason}")


def fit(arguments: list[str]) -> None:
    options = Options("fit", "Fit a velocity to trajectories, and keep the run in a folder.", "DATA [--option value …]")
    options.add("data", str, help=f"{KINDS}; one larger than memory is a .zarr")
    add_reading(options)
    names = ("auto", *OBJECTIVE_NAMES)
    options.add("--model", str, "auto", choices=MODELS, help="affine and basis are solved in closed form")
    options.add("--model_arguments", dict[str, Any], {}, help="of a network, as width=64 depth=3")
    options.add("--objective", str, "auto", choices=names, help="what is minimised; auto asks the data")
    options.add("--held_out_data", str | None, None, help="trajectories to evaluate on, instead of a share of DATA")
    options.add("--out", str | None, None, help="folder of the run (default: runs/fit/ and the name of DATA)")
    options.add_fields(FitConfig(), automatic=AUTOMATIC)
    _fit(options, options.parse(arguments))


def _fit(options: Options, given: dict[str, Any]) -> None:
    from phibe import fitting
    from phibe.files import replacing
    from phibe.io import open_data, windowed
    from phibe.report import write_report
    from phibe.training.runs import check_out

    out = Path(given["out"] or Path("runs") / "fit" / Path(given["data"]).stem)
    check_out(out)
    settings = {field.name: given[field.name] for field in fields(FitConfig) if given[field.name] is not None}
    how = {name: value for name, value in layout(given).items() if name != "windows"}
    data, note = opened(given["data"], how)
    held_out = open_data(given["held_out_data"], **how) if given["held_out_data"] else None
    leads = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    if leads and note:
        print(note, flush=True)
    choice = {"model": given["model"], "objective": given["objective"], "windows": given["windows"]}
    fitting.fit(data, **choice, out=out, held_out_data=held_out, **settings | given["model_arguments"])
    if leads:
        with replacing(out / "options.json") as partial:
            partial.write_text(options.text(given), "utf8", "surrogateescape")
        print(describe_run(out))
        if windows := given["windows"] or fitting.window_length(data):
            how["windows"], data = windows, windowed(data, windows)
        print(f"{out / 'report.html'}: {write_report(out, data, source=given['data'], **how).summary()}")


def report(arguments: list[str]) -> None:
    options = Options("report", "Write a run's quality.json and report.html.", "RUN [--data FILE] [--calibrate BOOL]")
    options.add("run", str, help="the folder of a run")
    moved = "what it was fitted to, if the run does not know or the file has moved"
    options.add("--data", str | None, None, help=moved)
    options.add("--calibrate", bool | None, None, help="fit every other observation to check the times in between")
    given = options.parse(arguments)

    from phibe.io import open_data
    from phibe.report import write_report

    data = open_data(given["data"]) if given["data"] else None
    quality = write_report(given["run"], data, source=given["data"], calibrate=given["calibrate"])
    print(f"{Path(given['run']) / 'report.html'}: {quality.summary()}")


def evaluate(arguments: list[str]) -> None:
    if arguments[:1] == ["pendulum"]:
        return evaluate_pendulum(arguments[1:])
    about = (
        "What a flow is worth on any data: a verdict, findings, distances. `phibe evaluate pendulum RUN.csv …` scores "
        "recorded double pendulums by the flow that comes with the project; a folder of that name is ./pendulum."
    )
    options = Options("evaluate", about, "FOLDER DATA | pendulum RUN.csv[.gz] …")
    options.add("folder", str, help="of a run, or of a flow that `phibe.save_flow` kept; nothing is written there")
    options.add("data", str, help=f"{KINDS}, such as new ones of the same process")
    add_reading(options)
    options.add("--json", str | None, None, help="write all numbers to this file; an old one is replaced")
    given = options.parse(arguments)

    from phibe.files import check_target, write_json
    from phibe.report import evaluate_run

    if given["json"]:
        check_target(given["json"])
        if Path(given["json"]).resolve() == Path(given["data"]).resolve():
            raise ValueError(f"--json {given['json']} is the data itself. Choose another name.")
    data, note = _as_fitted(given) or opened(given["data"], layout(given))
    quality = evaluate_run(given["folder"], data)
    print("\n".join([*filter(None, [note, *quality.notes]), quality.summary(), *_distances(quality)]))
    if given["json"]:
        print(write_json(given["json"], quality.as_json()))


def evaluate_pendulum(arguments: list[str]) -> None:
    about = (
        "What the flow that comes with the project is worth on recorded double pendulums: pose errors beside those of "
        "trivial forecasts, and the speed that friction leaves."
    )
    options = Options("evaluate pendulum", about, "RUN.csv[.gz] … [--json FILE]")
    form = (
        "a recording without header, 400 rows a second: pixel x,y of the pivot, the middle and the end marker, y down"
    )
    options.add("runs", tuple[str, ...], help=form)
    options.add("--json", str | None, None, help="write all numbers to this file; an old one is replaced")
    given = options.parse(arguments)

    from phibe.experiments.pendulum.real import evaluate_files, evaluation_text
    from phibe.files import check_target, write_json

    if given["json"]:
        check_target(given["json"])
        if Path(given["json"]).resolve() in [Path(run).resolve() for run in given["runs"]]:
            raise ValueError(f"--json {given['json']} is one of the runs. Choose another name.")
    found = evaluate_files(given["runs"])
    print(evaluation_text(found))
    if given["json"]:
        print(write_json(given["json"], found))


def _as_fitted(given: dict[str, Any]) -> tuple[Trajectories, str] | None:
    """The data that the run itself was fitted to, read as it was read then, if that is what was asked for."""
    from phibe.evaluation import NAME, open_source

    note = Path(given["folder"]) / NAME
    if layout(given) or not note.exists():
        return None
    same = json.loads(note.read_text("utf8")).get("path") == str(Path(given["data"]).resolve())
    return (open_source(given["folder"]), "") if same else None


def _distances(quality: Quality) -> list[str]:
    """The distances of the marginals by time, as a table."""
    if not quality.marginals:
        return []
    head = "sliced W₂ in standard deviations of the data, from other paths of it:"
    names = f"{'time':>12} {'flow':>10} {'floor':>10} {'persistence':>12} {'paths':>8}"
    rows = (
        f"{d.time:12.4g} {d.flow:10.3f} {d.floor:10.3f} {d.persistence:12.3f} {d.paths:8d}" for d in quality.marginals
    )
    return [head, names, *rows]


# -- generate ----------------------------------------------------------------------------------------------------------


def generate(arguments: list[str]) -> None:
    options = Options(
        "generate", "Trajectories of a fitted flow.", "RUN (--from START | --paths-of DATA | --ensemble N) --out FILE"
    )
    options.add("run", str, help="the folder of a run")
    options.add("--from", str | None, None, help="states to start from: a .csv of coordinates, or an array (n, *state)")
    options.add("--paths_of", str | None, None, help=f"{KINDS}: start where they are at the first of the times")
    options.add("--ensemble", int | None, None, help="so many starts, drawn from the data at the first of the times")
    times = "0:1:0.1 (first:last:step) or 0,0.5,2; the first is that of the start"
    options.add("--times", str | None, None, help=times)
    methods = ("auto", *METHOD_NAMES)
    options.add("--method", str, "auto", choices=methods, help="how to integrate; auto suits the objective")
    options.add("--substeps", int | None, None, help="steps between two times (default: none longer than the data's)")
    options.add("--extrapolate", bool, False, help="go on beyond the times that the flow was fitted on")
    options.add("--log_density", bool, False, help="write log ρ along each path too")
    options.add("--seed", int, 0, help="of the draw of an ensemble")
    options.add("--out", str | None, None, help="the .csv, .npz, .npy, .nc or .zarr to write; an old one is replaced")
    add_reading(options)
    given = options.parse(arguments)
    from_where = sum(map(bool, (given["from"], given["paths_of"], given["ensemble"])))
    if from_where != 1 + bool(given["paths_of"] and given["ensemble"]):
        raise ValueError("`phibe generate` needs one of --from START, --paths-of DATA and --ensemble N.")
    if not given["out"] or Path(given["out"]).suffix not in WRITTEN:
        raise ValueError(
            f"`phibe generate` needs --out, a file that ends in {', '.join(WRITTEN)}; got {given['out']!r}."
        )

    from phibe.files import check_target
    from phibe.io import save_data
    from phibe.training.runs import open_flow

    check_target(given["out"], folder=given["out"].endswith(".zarr"))
    flow, data = open_flow(given["run"]), _data(given)
    made, more = _generated(given, flow, *_starts(given, data), data)
    print(f"{save_data(made, given['out'], **more)}: {made}")


def _data(given: dict[str, Any]) -> Trajectories | None:
    """The trajectories to start from, or to know the density of: those named, or those of the run."""
    from phibe.evaluation import open_source
    from phibe.io import open_data

    if given["paths_of"]:
        return open_data(given["paths_of"], **layout(given))
    return open_source(given["run"]) if given["ensemble"] or given["log_density"] else None


def _starts(given: dict[str, Any], data: Trajectories | None) -> tuple[Tensor, Tensor]:
    """States to start from, and the times to go through."""
    import torch

    from phibe.ensembles import draw_states, states_at
    from phibe.io import parse_times, read_starts

    times = parse_times(given["times"]) if given["times"] else None
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
    return (draw_states(starts, given["ensemble"], seed=given["seed"]) if given["ensemble"] else starts), times


def _generated(
    given: dict[str, Any], flow: Flow, starts: Tensor, times: Tensor, data: Trajectories | None
) -> tuple[Trajectories, dict[str, Tensor]]:
    """The trajectories, and their log-density if it was asked for."""
    from phibe.ensembles import fit_density, generate_with_density, states_at

    method = None if given["method"] == "auto" else given["method"]
    how = {"method": method, "substeps": given["substeps"], "extrapolate": given["extrapolate"]}
    if not given["log_density"]:
        return flow.generate(starts, times, progress=True, **how), {}
    if Path(given["out"]).suffix == ".npy":
        raise ValueError("A .npy holds the states alone; with --log-density write a .csv, .npz, .nc or .zarr.")
    assert data is not None
    density = fit_density(states_at(data, float(times[0])))
    print(f"log-density at t = {float(times[0]):g}: {density.description}")
    made, log_density = generate_with_density(flow, starts, times, start=density.log_density, **how)
    return made, {"log_density": log_density}


# -- published data ----------------------------------------------------------------------------------------------------


def fetch(arguments: list[str]) -> None:
    options = Options("fetch", "Download a file, or go on with it, and check its hash.", "URL|kth --out FOLDER")
    options.add("url", str, help="the address of the file, http or https; or kth: the archives of KTH human actions")
    options.add("--out", str, "data", help="the folder to put it in, beside hashes.json")
    trusted = "the hash that it must have; without, the first download is trusted and its hash remembered and checked"
    options.add("--sha256", str | None, None, help=trusted)
    options.add(
        "--actions", tuple[str, ...], (), help="of kth: some of its archives, as walking,running (default: all)"
    )
    given = options.parse(arguments)
    if given["url"] == "kth":
        return _fetch_kth(Path(given["out"]), list(given["actions"]))

    from phibe.experiments.downloads import fetch, sha256_of

    file = fetch(given["url"], given["out"], sha256=given["sha256"])
    print(f"{file}: {file.stat().st_size / 2**20:.1f} MB, SHA-256 {sha256_of(file)}")


def _fetch_kth(folder: Path, actions: list[str]) -> None:
    """Say what is coming and under which terms, then bring it."""
    from phibe.experiments.downloads import HASHES
    from phibe.experiments.video.kth import ADDRESS, MEGABYTES, TERMS, fetch_kth

    if unknown := [name for name in actions if name not in MEGABYTES]:
        raise ValueError(f"--actions must be some of {', '.join(MEGABYTES)}; got {', '.join(unknown)}.")
    actions = actions or list(MEGABYTES)
    size = sum(MEGABYTES[name] for name in actions)
    print(f"{TERMS}\n{size} MB from {ADDRESS}, and as much again unpacked.", flush=True)
    unpacked = fetch_kth(folder, actions=actions)
    print(f"{unpacked}: unpacked; hashes in {HASHES}. Next: phibe.kth.read_kth({str(folder)!r})")


def convert(arguments: list[str]) -> None:
    options = Options(
        "convert", "Published Navier–Stokes files of PFI as trajectories to train on.", "FOLDER --out FOLDER"
    )
    options.add("folder", str, help="the folder with the files, each a tuple of data and time by torch.save")
    options.add("--out", str | None, None, help="the folder to write: train.zarr, held_out.zarr and record.json")
    options.add("--held_out", float, 0.2, help="share of the paths to hold out")
    options.add("--seed", int, 0, help="of the split")
    given = options.parse(arguments)
    folder = Path(given["folder"])
    if not given["out"] or not folder.is_dir():
        raise ValueError(f"`phibe convert` needs --out and a folder of files; got {folder}.")

    from phibe.experiments.downloads import HASHES
    from phibe.files import check_target

    check_target(given["out"], folder=True)

    from phibe.experiments.turbulence.data import convert_pfi

    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != HASHES and path.name[0] != ".")
    record = convert_pfi(files, given["out"], held_out=given["held_out"], seed=given["seed"])
    repeated = sum(file["repeated"] for file in record["files"])
    print(
        f"{given['out']}: {record['train']} paths to train on, {record['held_out']} held out, {repeated} repeated ones "
        f"left out; root mean square {record['scale']:.4f}"
    )


# -- what a run is, in a few lines -------------------------------------------------------------------------------------


def describe_run(folder: str | Path) -> str:
    """How far a run is, what it is of, and the settings that are not the defaults."""
    from phibe.training.runs import Metrics, read_config

    folder, about = Path(folder), read_config(folder)
    network, config, defaults = about["network"], about.get("config", {}), asdict(FitConfig())
    arguments = ", ".join(f"{name}={value}" for name, value in network.get("arguments", {}).items())
    changed = [f"{name}={value}" for name, value in config.items() if defaults.get(name) != value]
    history = Metrics(folder / "metrics.jsonl").read()
    lines = {
        "status": _status(folder, config),
        "network": f"{network['name']}({arguments}){', normalised' if network['normalised'] else ''}",
        "objective": ", ".join(f"{k} {v}" if k != "name" else str(v) for k, v in about.get("objective", {}).items()),
        "state": f"shape {tuple(about['state_shape'])}, times {about['interval']}, step {about['step']:g}",
        "settings": ", ".join(changed) or "the defaults",
    }
    if "trials" in about:
        lines["tried"] = _trials(about["trials"])
    return "\n".join([str(folder), *(f"  {name:10} {text}" for name, text in lines.items()), *_last(history)])


def _status(folder: Path, config: dict[str, Any]) -> str:
    from phibe.training.runs import CHECKPOINT, RESULT
    from phibe.training.tensors import load_tensors

    if (folder / RESULT).exists():
        return _result(json.loads((folder / RESULT).read_text("utf8")))
    if (folder / CHECKPOINT).exists():
        step = load_tensors(folder / CHECKPOINT)[1]["progress"]["step"]
        return f"not finished: it goes on at step {step} of {config.get('steps')} when started again"
    return "not finished: no checkpoint yet" if config else "a flow that was saved"


def _result(result: dict[str, Any]) -> str:
    how = f"{'stopped early' if result['stopped_early'] else 'finished'} after {result['steps']} steps"
    best, at = "best ", f" at step {result['best_step']}"
    if result.get("closed_form"):
        how, best, at = "solved in closed form", "", ""
    return how if result["held_out"] is None else f"{how}, {best}held-out objective {result['held_out']:.6g}{at}"


def _trials(trials: list[dict[str, Any]]) -> str:
    """What cross-validation found, in one line."""
    from phibe.linear.basis import Size

    least = min(trials, key=lambda trial: trial["objective"])
    size = Size(**{name: least[name] for name in Size._fields})
    return (
        f"{len(trials)} sizes; the least objective on paths left out, {least['objective']:.5g} ± {least['error']:.2g}, "
        f"has {size}; of the few best, the one whose flow keeps closest to the observed marginals is taken"
    )


def _last(history: list[dict[str, Any]], count: int = 5) -> list[str]:
    """A table of the last evaluations."""
    names = ("step", "train", "held_out", "jacobian_dx")
    cells = [[line.get(name) for name in names] for line in history[-count:]]
    rows = [names, *(["-" if cell is None else f"{cell:.5g}" for cell in row] for row in cells)]
    table = ["  " + "".join(f"{cell:>14}" for cell in row) for row in rows]
    return ["  last evaluations", *table] if history else []
