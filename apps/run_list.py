"""Runs of one's own: those below the folder that the server was given, each by its name. No other path is opened."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

APPS = {"vectors": "flow_explorer", "pictures": "rollout_explorer"}
MOST = 100


@dataclass(frozen=True)
class Run:
    """A fitted flow in a folder: its name, and whether its states are vectors or pictures."""

    name: str
    folder: Path
    kind: str

    @property
    def address(self) -> str:
        """Where the app shows it, from the root of the server."""
        return f"/{APPS[self.kind]}?run={quote(self.name, safe='')}"

    def quality(self) -> dict[str, Any]:
        """What `phibe report` found; {} if it was not asked."""
        try:
            return json.loads((self.folder / "quality.json").read_text("utf8"))
        except (OSError, ValueError):
            return {}


def listed(kind: str | None = None) -> dict[str, Run]:
    """Finished runs by name, the newest first: `PHIBE_RUNS`, else runs/ where the server was started."""
    root = Path(os.environ.get("PHIBE_RUNS", "runs"))
    weights = [path for depth in range(1, 5) for path in root.glob("*/" * depth + "weights.safetensors")]
    newest = sorted(weights, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST]
    found = (_run(path.parent, root) for path in newest)
    return {run.name: run for run in found if run and kind in (None, run.kind)}


def _run(folder: Path, root: Path) -> Run | None:
    try:  # read here, as whatever opens a run imports torch, for which the first page would wait
        shape = json.loads((folder / "config.json").read_text("utf8"))["state_shape"]
        kind = {1: "vectors", 3: "pictures"}.get(len(shape))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Run(folder.relative_to(root).as_posix(), folder, kind) if kind else None


def links(kind: str) -> str:
    """Links to the newest runs, as HTML, or how to come to one."""
    runs = list(listed(kind).values())[:8]
    if not runs:
        return "<p>None yet: <code>phibe fit data.csv</code> makes one.</p>"
    items = "".join(f'<li><a href="{escape(run.address)}">{escape(run.name)}</a></li>' for run in runs)
    return f"<ul>{items}</ul>"
