"""Finds a Chromium for the browser tests; run as a script, it installs Debian's package when there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
MACOS = [
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
]


def find() -> str | None:
    """The path of a Chromium or Chrome: $CHROMIUM if set, else the first one that is installed, else None."""
    if chosen := os.environ.get("CHROMIUM"):
        return shutil.which(chosen)
    installed = (shutil.which(name) for name in NAMES)
    return next(filter(None, installed), next(filter(os.path.exists, MACOS), None))


def install() -> None:
    """Installs Debian's chromium, as root or through sudo where that asks no password."""
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if all(map(shutil.which, ["apt-get", *sudo[:1]])):
        for arguments in (
            ["update", "-qq"],
            ["install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-liberation"],
        ):
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run([*sudo, "apt-get", *arguments], env=quiet, stdout=subprocess.DEVNULL, check=False)


def main() -> int:
    if chosen := os.environ.get("CHROMIUM"):
        if find() is None:
            print(
                f"CHROMIUM is set to {chosen!r}, which is no program. Unset it, or give the path of a browser.",
                file=sys.stderr,
            )
            return 2
    elif find() is None:
        print("No Chromium or Chrome found; installing Debian's chromium ...")
        install()
    if find() is None:
        print(
            "The browser tests need Chromium or Chrome: none is on the PATH and apt-get could not install one.\n"
            "Install one, or set CHROMIUM=/path/to/browser. Without it: .venv/bin/pytest --ignore tests/browser",
            file=sys.stderr,
        )
        return 2
    print(f"browser: {Path(find()).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
