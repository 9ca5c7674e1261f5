"""Seconds that each page of the built book took to execute, from the build's own record (aim: at most 60 a page)."""

import json
from pathlib import Path

from jupyter_cache import get_cache

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    records = get_cache(ROOT / "_build" / ".jupyter_cache").list_cache_records()
    print(json.dumps({Path(r.uri).stem: round(r.data["execution_seconds"], 1) for r in records}, indent=2))
