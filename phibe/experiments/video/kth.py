"""KTH human actions: the official AVI files and their frame annotations, as clips of 64 × 64, with the subject split.

Schuldt, Laptev and Caputo, "Recognizing human actions: a local SVM approach", ICPR 2004: 25 people, six actions, four
scenarios; 599 videos of 160 × 120 at 25 frames a second, cut into 2,391 sequences. Free for non-commercial use; not a
part of this project: `phibe fetch kth` downloads it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from phibe.experiments.downloads import fetch
from phibe.experiments.video.clips import RATE, Clips, Fit, read_video, shrink
from phibe.experiments.video.drawing import ACTIONS
from phibe.files import replacing

ADDRESS = "https://www.csc.kth.se/cvap/actions/"
ANNOTATIONS = "00sequences.txt"
MEGABYTES = {
    **{"walking": 242, "jogging": 168, "running": 149},
    **{"boxing": 194, "handwaving": 218, "handclapping": 176},
}
"""Approximate size of each archive, stated before a download."""
TERMS = "KTH human actions: free for non-commercial use; cite Schuldt, Laptev and Caputo, ICPR 2004."
HEIGHT, WIDTH = 120, 160

OFFICIAL = {
    "train": (11, 12, 13, 14, 15, 16, 17, 18),
    "validation": (19, 20, 21, 23, 24, 25, 1, 4),
    "test": (22, 2, 3, 5, 6, 7, 8, 9, 10),
}
"""People of the split of Schuldt, Laptev and Caputo."""
EIGHTY_TWENTY = {"train": tuple(range(1, 21)), "test": tuple(range(21, 26))}
"""80 % and 20 % of the people. The paper says "80/20" and not of what; no person may be on both sides."""


def split(clips: Clips, people: dict[str, tuple[int, ...]] = OFFICIAL) -> dict[str, Clips]:
    """The clips of each side of a split by person."""
    return {side: clips.where(people=who) for side, who in people.items()}


# -- annotations -------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"(person\d\d_[a-z]+_d\d)\s+(?:frames\s+(?P<ranges>[\d\s,-]+)|\*missing\*)\s*")
_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)")


def parse_annotations(text: str) -> dict[str, list[tuple[int, int]]]:
    """First and last frame, counted from 1, of the sequences of each video, in the order of the file.

    A line is a name, white space, `frames`, and ranges between commas, or `*missing*` instead (then the list is empty).
    Blank lines, the description above and the list of the people' split are passed over. Some official ranges overlap
    or go back; they stay as they are, since the 2,391 sequences count them.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not re.match(r"\s*person\d\d_", line):
            continue
        fields = _LINE.fullmatch(line.strip())
        ranges = [(int(a), int(b)) for a, b in _RANGE.findall(fields["ranges"] or "")] if fields else []
        if not fields or (fields["ranges"] and not ranges) or any(not 1 <= a < b for a, b in ranges):
            raise ValueError(
                f"Line {number} must be a name and ranges as `person01_boxing_d1 frames 1-95, 96-185`; got {line!r}."
            )
        if fields[1] in found:
            raise ValueError(f"Line {number} names {fields[1]} for the second time.")
        found[fields[1]] = ranges
    if not found:
        raise ValueError(f"There is no line of the form `person01_boxing_d1 frames 1-95`. Is this {ANNOTATIONS}?")
    return found


# -- videos ------------------------------------------------------------------------------------------------------------


def read_kth(
    folder: str | Path,
    *,
    fit: Fit = "squash",
    size: int = 64,
    actions: Sequence[str] = ACTIONS,
    cache: str | Path | None = None,
    progress: bool = False,
) -> Clips:
    """Every annotated sequence of the AVI files anywhere below `folder`, as clips of size × size bytes, memory-mapped.

    `fit` is how 160 × 120 becomes a square: `squash` the whole picture, or `crop` its middle; area averages both times.
    The clips are decoded once into `cache` (by default a folder beside the videos), and again when the videos, the
    annotations or the settings have changed. A sequence that a file ends before is left out with a warning: so ends
    person01_boxing_d4 of the official archive.
    """
    folder = Path(folder)
    if unknown := set(actions) - set(ACTIONS):
        raise ValueError(f"`actions` must be some of {', '.join(ACTIONS)}; got {', '.join(sorted(unknown))}.")
    notes = folder / ANNOTATIONS
    if not notes.is_file():
        raise ValueError(f"There is no {notes}. Bring the data first: `phibe fetch kth --out {folder}`.")
    sequences = {
        k: v for k, v in parse_annotations(notes.read_text("utf8")).items() if k.split("_")[1] in actions and v
    }
    files = _files(folder, sequences)
    settings = {"fit": fit, "size": size, "sequences": sequences, "files": _stamps(files)}
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    target = Path(cache or folder / "cache") / f"{fit}{size}-{key}"
    if not target.exists():
        _decode(files, sequences, target, fit=fit, size=size, progress=progress)
    index = json.loads((target / "index.json").read_text("utf8"))
    return Clips(np.load(target / "pixels.npy", mmap_mode="r"), np.array(index["spans"]), tuple(index["names"]), RATE)


def _files(folder: Path, names: dict[str, Any]) -> dict[str, Path]:
    """The file of each video; an error that counts the missing ones."""
    present = {path.name: path for path in sorted(folder.rglob("person*_uncomp.avi"))}
    missing = [name for name in names if f"{name}_uncomp.avi" not in present]
    if missing or not names:
        actions = sorted({name.split("_")[1] for name in missing})
        raise ValueError(
            f"{folder} must hold the {len(names)} annotated videos; {len(missing)} are missing, the first is "
            f"{next(iter(missing), 'any')}_uncomp.avi. `phibe fetch kth --out {folder}` brings them, or read only the "
            f"`actions` that you have (without {', '.join(actions)})."
        )
    return {name: present[f"{name}_uncomp.avi"] for name in names}


def _stamps(files: dict[str, Path]) -> list[tuple[str, int, int]]:
    return [(name, path.stat().st_size, path.stat().st_mtime_ns) for name, path in files.items()]


def _decode(
    files: dict[str, Path],
    sequences: dict[str, list[tuple[int, int]]],
    target: Path,
    *,
    fit: Fit,
    size: int,
    progress: bool,
) -> None:
    """Write pixels.npy and index.json into `target`, which appears when they are complete."""
    names: list[str] = []
    spans: list[tuple[int, int]] = []
    total = sum(b - a + 1 for ranges in sequences.values() for a, b in ranges)
    with replacing(target) as partial:
        partial.mkdir()
        pixels = np.lib.format.open_memmap(partial / "pixels.npy", mode="w+", dtype=np.uint8, shape=(total, size, size))
        end = 0
        for name, path in tqdm(files.items(), disable=not progress, desc="KTH"):
            small = shrink(read_official(path), fit=fit, size=size)
            for i, a, b in _whole(sequences[name], len(small), path):
                begin, end = end, end + b - a + 1
                pixels[begin:end] = small[a - 1 : b]
                names.append(f"{name}_s{i}")
                spans.append((begin, end))
        pixels.flush()
        (partial / "index.json").write_text(json.dumps({"names": names, "spans": spans}), "utf8")


def read_official(path: str | Path) -> np.ndarray:
    """All frames of one video, (time, 120, 160) bytes; an error if it is of another size."""
    frames = read_video(path).frames
    if frames.shape[1:] != (HEIGHT, WIDTH):
        raise ValueError(
            f"{path} must be of {WIDTH} × {HEIGHT} pixels, as the official files are; it is of {frames.shape[2]} × "
            f"{frames.shape[1]}. Preprocessed clips? Keep them in a .npz and use `read_clips`."
        )
    return frames


def _whole(ranges: list[tuple[int, int]], length: int, path: Path) -> list[tuple[int, int, int]]:
    """The ranges that the video holds to their end, each after its number."""
    kept = [(i, a, b) for i, (a, b) in enumerate(ranges) if b <= length]
    if not kept:
        raise ValueError(
            f"{path} ends after {length} frames, before the end of its first sequence at {ranges[0][1]}. A broken "
            "download? Remove it and fetch it again."
        )
    if len(kept) < len(ranges):
        warnings.warn(
            f"{path.name} ends after {length} frames; {len(ranges) - len(kept)} of its {len(ranges)} annotated "
            "sequences go beyond that and are left out.",
            stacklevel=4,
        )
    return kept


# -- download ----------------------------------------------------------------------------------------------------------


def fetch_kth(folder: str | Path, *, actions: Sequence[str] = ACTIONS, address: str = ADDRESS) -> Path:
    """The official archives and annotations in `folder`, unpacked; what is there already is not fetched again.

    No hash is published: the ones of the first download are remembered in hashes.json and checked from then on.
    """
    folder = Path(folder)
    fetch(f"{address}{ANNOTATIONS}", folder)
    for action in actions:
        unzip(fetch(f"{address}{action}.zip", folder), folder / action)
    return folder


MEMBER = re.compile(r"person\d\d_[a-z]+_d\d_uncomp\.avi")
LARGEST = 2**30
"""Bytes that the videos of one archive may have together; the official ones have a quarter of that."""


def unzip(archive: str | Path, folder: str | Path) -> list[Path]:
    """Write the videos of an archive into `folder`; names with folders in them and too large contents are refused."""
    try:
        with zipfile.ZipFile(archive) as content:
            members = [member for member in content.infolist() if not member.is_dir()]
            _check_members(members, archive)
            return [_extract(content, member, Path(folder) / member.filename) for member in members]
    except zipfile.BadZipFile as error:
        raise ValueError(f"{archive} is no readable zip archive: {error}. Remove it and fetch it again?") from None


def _check_members(members: list[zipfile.ZipInfo], archive: str | Path) -> None:
    if strange := [member.filename for member in members if not MEMBER.fullmatch(member.filename)]:
        raise ValueError(
            f"{archive} must hold videos named personPP_ACTION_dD_uncomp.avi and nothing else; it holds {strange[0]!r}."
        )
    if (total := sum(member.file_size for member in members)) > LARGEST:
        raise ValueError(
            f"{archive} would unpack to {total / 2**20:.0f} MB; at most {LARGEST / 2**20:.0f} are expected."
        )


def _extract(content: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> Path:
    if not target.exists() or target.stat().st_size != member.file_size:
        with replacing(target) as partial, content.open(member) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink)  # ends at the stated size: zipfile reads no further
    return target
