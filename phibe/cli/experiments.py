"""Commands for what the project itself shows: list, run, artifacts, serve."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from phibe.cli.options import Options, closest
from phibe.cli.summaries import describe_objectives
from phibe.experiments import EXPERIMENTS
from phibe.experiments.report import PRESETS, MissingData, keep


def list_all(arguments: list[str]) -> None:
    Options("list", "The experiments of the paper, and what each measures.", "").parse(arguments)
    for name, module in EXPERIMENTS.items():
        print(f"{name:16} {(module.__doc__ or '').splitlines()[0]}")


def list_objectives(arguments: list[str]) -> None:
    Options("objectives", "What a velocity can be fitted with, and when to use which.", "").parse(arguments)
    print(describe_objectives())


def run(arguments: list[str]) -> None:
    if arguments[:1] in (["-h"], ["--help"]):
        print("usage: phibe run NAME [--preset P] [--field value …]; `phibe run NAME --help` explains the fields of:\n")
        return list_all([])
    if not arguments or arguments[0] not in EXPERIMENTS:
        name = arguments[0] if arguments else ""
        raise ValueError(f"run: needs one of {', '.join(EXPERIMENTS)}; got {name!r}{closest(name, EXPERIMENTS)}.")
    name, module = arguments[0], EXPERIMENTS[arguments[0]]
    preset = _preset(arguments)
    options = Options(f"run {name}", (module.__doc__ or "").splitlines()[0], "[--preset P] [--field value …]")
    options.add(
        "--preset",
        str,
        preset,
        choices=PRESETS,
        help="smoke (seconds), laptop (minutes) or paper (the published sizes, for a GPU)",
    )
    options.add("--out", str | None, None, help="folder of the results (default: runs/, the name and the preset)")
    options.add_fields(module.CONFIGS[preset])
    given = options.parse(arguments[1:])
    out = Path(given.out or Path("runs") / name / given.preset)
    report = module.run(given.preset, out=out, config=options.built(module.Config, given))
    print(f"{name} ({given.preset}) took {report.seconds:g} s: {out / 'report.json'}")


def _preset(arguments: list[str]) -> str:
    """What --preset asks for, else PHIBE_PRESET, else laptop: the sizes of the paper are never the default."""
    asked = [argument.partition("=")[2] for argument in arguments if argument.startswith("--preset=")]
    asked += [value for name, value in pairwise(arguments) if name == "--preset"]
    preset = asked[-1] if asked else os.environ.get("PHIBE_PRESET", "laptop")
    if preset not in PRESETS:
        raise ValueError(f"the preset must be one of {', '.join(PRESETS)}; got {preset!r}.")
    return preset


def artifacts(arguments: list[str]) -> None:
    Options(
        "artifacts", "Run every experiment at laptop scale, which takes some hours, and renew artifacts/.", ""
    ).parse(arguments)
    for name, module in EXPERIMENTS.items():
        out = Path("runs") / name / "laptop"
        try:
            module.run("laptop", out=out)
        except MissingData as missing:
            print(f"{name} stays as it is. {missing}")
        else:
            keep(out, name)


def serve(arguments: list[str]) -> None:
    options = Options("serve", "Build the book if it is stale, then serve book and apps on this machine.", "[--port N]")
    options.add("--port", int, 5006, help="of http://localhost")
    port, root = options.parse(arguments).port, Path(__file__).resolve().parents[2]
    if not (root / "apps").is_dir():
        raise ValueError(
            "book and apps are in the repository, not in the installed package: run `make serve` in a clone."
        )
    os.environ["PHIBE_RUNS"] = str(Path("runs").resolve())  # of the folder that it was started in
    os.chdir(root)
    if subprocess.run([sys.executable, "book/build.py"]).returncode:
        raise ValueError("the book could not be built; its messages are above.")
    print(f"PhiBE-Flow is on http://localhost:{port} (Ctrl-C stops it)", flush=True)
    os.execv(sys.executable, serve_command(port, sorted(map(str, Path("apps").glob("*_explorer.py")))))


def serve_command(port: int, apps: list[str]) -> list[str]:
    """Panel's server for book and apps, for this machine alone."""
    origins = [part for host in ("localhost", "127.0.0.1") for part in ("--allow-websocket-origin", f"{host}:{port}")]
    pages = ["--index", "apps/index.html", "--disable-index-redirect", "--plugins", "apps.routes"]
    address = ["--address", "localhost", "--port", str(port), *origins]
    return [sys.executable, "-m", "panel", "serve", *apps, *address, *pages, "--static-dirs", "book=_build/html"]
