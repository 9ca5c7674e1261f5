"""Downloads of published data: they go on where they were cut off, and are verified by their hashes.

Read next: `video/kth.py`, a data set that comes this way.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from tqdm.auto import tqdm

from phibe.files import lock, read_object, write_json

HASHES = "hashes.json"
"""Sizes, SHA-256 and addresses of downloads, beside them."""


def fetch(url: str, folder: str | Path, *, sha256: str | None = None, progress: bool = True) -> Path:
    """The file at `url` in `folder`, downloaded unless it is there, with the hash that it must have.

    Without `sha256` the hash of the first download is taken on trust, remembered in hashes.json, and checked from then
    on. A download that was cut off goes on where it ended, if the server has still the same file.
    """
    folder, name = Path(folder), _name(url)
    wanted = (sha256 or _hashes(folder).get(name, {}).get("sha256", "")).lower()
    target, partial = folder / name, folder / f".{name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        with partial.open("ab") as file:
            if not lock(file.fileno(), partial) or target.exists():
                raise ValueError(f"{partial} is being downloaded by another process. Wait until that ends.")
            _download(url, file, partial, progress)
            _check(partial, wanted, url)
            os.replace(partial, target)
            _tag(partial).unlink(missing_ok=True)
    found = _check(target, wanted, url)
    write_json(folder / HASHES, _hashes(folder) | {name: {"size": target.stat().st_size, "sha256": found, "url": url}})
    return target


def sha256_of(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(url: str) -> str:
    parts = urlsplit(url)
    name = unquote(parts.path).rpartition("/")[2]
    if parts.scheme not in ("http", "https") or not parts.netloc or name in ("", ".", "..", HASHES):
        raise ValueError(f"An address must be http(s)://…/file; got {url!r}.")
    return name


def _hashes(folder: Path) -> dict[str, Any]:
    """What is known of the files there."""
    file = folder / HASHES
    found = read_object(file)
    known = [isinstance(entry, dict) and "sha256" in entry for entry in found.values()]
    if file.exists() and not (known and all(known)):
        raise ValueError(f"{file} is no list of hashes that phibe wrote. Choose another folder.")
    return found


def _check(file: Path, wanted: str, url: str) -> str:
    """The file's hash, which must be the wanted one, if one is; a wrong partial file is removed."""
    found = sha256_of(file)
    if wanted and found != wanted:
        if file.name.endswith(".part"):
            for part in (file, _tag(file)):
                part.unlink(missing_ok=True)
        raise ValueError(
            f"{file} must have SHA-256 {wanted}; it has {found}. Either {url} serves another file now, or it was "
            f"changed on the way. Remove it and its entry in {HASHES} only if you trust the new one."
        )
    return found


def _tag(partial: Path) -> Path:
    """Where the server's name for the version of the file is kept, to go on with the same one."""
    return partial.with_name(f"{partial.name}.tag")


def _download(url: str, file: BinaryIO, partial: Path, progress: bool) -> None:
    """Bring the partial file to its full length, from where it ends."""
    tag = _tag(partial).read_text("utf8") if _tag(partial).exists() else ""
    begun = file.tell() if tag else 0
    headers = {"Range": f"bytes={begun}-", "If-Range": tag} if begun else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as reply:
            if reply.status != 206:  # all of it, from the beginning
                begun = file.truncate(0)
            _tag(partial).write_text(reply.headers.get("ETag") or reply.headers.get("Last-Modified") or "", "utf8")
            length = reply.headers.get("Content-Length")
            total = begun + int(length) if length else None
            settings = {"unit": "B", "unit_scale": True, "desc": _name(url), "disable": not progress}
            with tqdm(total=total, initial=begun, **settings) as bar:
                while block := reply.read(2**20):
                    bar.update(file.write(block))
            file.flush()
    except urllib.error.HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{begun}":
            return  # nothing is missing
        raise ValueError(f"{url} cannot be had: the server says {error.code} {error.reason}.") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{url} could not be read to its end ({reason}). No network? Run the same command again to go on, or bring "
            f"the file yourself: {partial.parent / _name(url)}."
        ) from None
    if total is not None and file.tell() != total:
        raise ValueError(f"{url} ended after {file.tell()} of {total} bytes. Run the same command again to go on.")
