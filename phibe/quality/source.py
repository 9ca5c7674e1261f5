"""Source: a run remembers which file its data came from, so that reports and apps find it again, or say why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phibe.files import write_json
from phibe.training import open_data
from phibe.training.checkpoints import fingerprint
from phibe.trajectories import Trajectories

NAME = "data.json"


def write_source(folder: str | Path, data: Trajectories, path: str | Path, **options: Any) -> Path:
    """Note in the run's folder where its data is, how it was read (`options` of `open_data`), and a hash of it."""
    facts = {"path": str(Path(path).resolve()), "options": options, "sha256": fingerprint(data)}
    return write_json(Path(folder) / NAME, facts)


def open_source(folder: str | Path) -> Trajectories:
    """The data that the run was fitted to; ValueError with the likely fix if it was not noted, moved or changed."""
    try:
        facts = json.loads((Path(folder) / NAME).read_text())
        path, options, digest = Path(facts["path"]), facts["options"], facts["sha256"]
    except FileNotFoundError:
        raise ValueError(
            f"{folder} does not say where its data is. Tell it once: `phibe report {folder} --data FILE`."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{Path(folder) / NAME} cannot be read: {error}. Write it anew with `phibe report`."
        ) from error
    if not path.exists():
        raise ValueError(
            f"The data of this run was {path}, which is no longer there. Moved? `phibe report {folder} --data FILE`."
        )
    data = open_data(path, **options)
    if fingerprint(data) != digest:
        raise ValueError(f"{path} has changed since this run was fitted to it: other numbers, or other times.")
    return data
