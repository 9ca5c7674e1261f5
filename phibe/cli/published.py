"""Commands for data that others have published: fetch, convert."""

from __future__ import annotations

from pathlib import Path

from phibe.cli.options import Options
from phibe.experiments.turbulence.data import convert_pfi
from phibe.experiments.video.drawing import ACTIONS
from phibe.experiments.video.kth import ADDRESS, MEGABYTES, TERMS, fetch_kth
from phibe.files import HASHES, fetch, sha256_of


def download(arguments: list[str]) -> None:
    options = Options("fetch", "Download a file, or go on with it, and check its hash.", "URL|kth --out FOLDER")
    options.add(
        "url", str, help="the address of the file, http or https; or kth: the six archives of KTH human actions"
    )
    options.add("--out", str, "data", help="the folder to put it in, beside hashes.json")
    options.add(
        "--sha256",
        str | None,
        None,
        help="the hash that it must have; without, the first download is trusted and its hash remembered and checked",
    )
    options.add("--actions", list[str], list(ACTIONS), help="of kth: some of its archives, as [walking,running]")
    given = options.parse(arguments)
    if given.url == "kth":
        return _kth(Path(given.out), given.actions)
    file = fetch(given.url, given.out, sha256=given.sha256)
    print(f"{file}: {file.stat().st_size / 2**20:.1f} MB, SHA-256 {sha256_of(file)}")


def _kth(folder: Path, actions: list[str]) -> None:
    """Say what is coming and under which terms, then bring it."""
    if unknown := [name for name in actions if name not in ACTIONS]:
        raise ValueError(f"--actions must be some of {', '.join(ACTIONS)}; got {', '.join(unknown)}.")
    print(
        f"{TERMS}\n{sum(MEGABYTES[name] for name in actions)} MB from {ADDRESS}, and as much again unpacked.",
        flush=True,
    )
    print(f"{fetch_kth(folder, actions=actions)}: unpacked; hashes in {HASHES}. Next: read_kth({str(folder)!r})")


def convert(arguments: list[str]) -> None:
    options = Options(
        "convert", "Published Navier–Stokes files of PFI as trajectories to train on.", "FOLDER --out FOLDER"
    )
    options.add("folder", str, help="the folder with the files, each a tuple of data and time by torch.save")
    options.add("--out", str | None, None, help="the folder to write: train.zarr, held_out.zarr and record.json")
    options.add("--held_out", float, 0.2, help="share of the paths to hold out")
    options.add("--seed", int, 0, help="of the split")
    given = options.parse(arguments)
    folder = Path(given.folder)
    if not given.out or not folder.is_dir():
        raise ValueError(f"`phibe convert` needs --out and a folder of files; got {folder}.")
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != HASHES and path.name[0] != ".")
    record = convert_pfi(files, given.out, held_out=given.held_out, seed=given.seed)
    repeated = sum(file["repeated"] for file in record["files"])
    print(
        f"{given.out}: {record['train']} paths to train on, {record['held_out']} held out, {repeated} repeated ones "
        f"left out; root mean square {record['scale']:.4f}"
    )
