"""Machines: any locale, a terminal without our letters, folders with spaces or without the right to write."""

import ast
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = [path for part in ("phibe", "apps", "book", "tests", "benchmarks") for path in (ROOT / part).rglob("*.py")]
POOR = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
ORDINARY = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONIOENCODING": "utf8"}
OF_ROOT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]  # root without its rights
PLACE = {"read_text": 0, "write_text": 1}  # of the encoding among the arguments

ascii_checkout = pytest.mark.skipif(
    not str(ROOT).isascii(), reason="Python itself reads the place of its packages in the encoding of the locale"
)


def unnamed(source: str) -> list[int]:
    """Lines with a call that reads or writes text in the encoding of the locale."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return sorted(call.lineno for call in calls if _is_text(call) and "encoding" not in {k.arg for k in call.keywords})


def _is_text(call: ast.Call) -> bool:
    """Whether it opens a file, or talks to a process, as text and gives no encoding by its place."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in PLACE:
        return len(call.args) <= PLACE[name]
    if name == "open":
        at = 1 if isinstance(call.func, ast.Name) else 0  # open(path, mode), path.open(mode)
        mode = (
            ast.literal_eval(call.args[at]) if call.args[at:] and isinstance(call.args[at], ast.Constant) else "r" * at
        )
        return mode in ("r", "w", "a", "x")
    return any(keyword.arg == "text" and getattr(keyword.value, "value", 0) is True for keyword in call.keywords)


@pytest.fixture
def table(tmp_path) -> Path:
    """A table with a name that is not ASCII, in a folder whose name is not either and holds a space."""
    folder = tmp_path / "my däta"
    folder.mkdir()
    rows = [f"{path},{k / 10},{math.sin(k / 10 + path):.6f}" for path in range(5) for k in range(21)]
    (folder / "däta.csv").write_text("\n".join(["path,time,θ [m²]", *rows]), encoding="utf8")
    return folder / "däta.csv"


def phibe(*arguments: str, cwd: Path, env: dict[str, str] = POOR, by: tuple[str, ...] = ()) -> str:
    """What the command prints, as bytes of ASCII or of UTF-8."""
    command = [*by, sys.executable, "-m", "phibe", *arguments]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, encoding="utf8")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_text_names_its_encoding():
    lines = {path.relative_to(ROOT).as_posix(): unnamed(path.read_text("utf8")) for path in FILES}
    assert len(lines) > 200
    assert {path: found for path, found in lines.items() if found} == {}


def test_a_text_without_an_encoding_is_noticed():
    named = 'path.read_text("utf8")\npath.write_text(x, encoding="utf8")\nopen(path, "rb")\npath.open("wb")\n'
    bare = 'path.read_text()\npath.write_text(x)\nopen(path)\npath.open("w")\nrun(command, text=True)\n'
    assert unnamed(named) == [] and unnamed(bare) == [1, 2, 3, 4, 5]


@ascii_checkout
@pytest.mark.slow
def test_a_terminal_without_our_letters_shows_others_in_their_place(table):
    poor, rich = (phibe("check", "däta.csv", cwd=table.parent, env=env) for env in (POOR, ORDINARY))
    assert poor.isascii() and not rich.isascii()
    assert poor.splitlines()[1:] == rich.encode("ascii", "replace").decode().splitlines()[1:]  # below the file's name


@ascii_checkout
@pytest.mark.slow
def test_a_fit_writes_the_same_files_in_any_locale(table):
    for name, env in (("poor", POOR), ("rich", ORDINARY)):
        phibe("fit", "däta.csv", "--model", "affine", "--out", name, cwd=table.parent, env=env)
    poor, rich = ((table.parent / name / "automatic.json").read_text("utf8") for name in ("poor", "rich"))
    assert poor == rich
    assert "m²" in (table.parent / "poor" / "report.html").read_text("utf8")


@pytest.mark.slow
def test_commands_that_read_need_no_right_to_write(table):
    table.parent.chmod(0o555)
    by = tuple(OF_ROOT) if os.access(table.parent, os.W_OK) else ()
    if by and shutil.which(by[0]) is None:
        pytest.skip("root may write everywhere, and there is no setpriv to take that right away")
    poor = ORDINARY | {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}
    try:
        assert subprocess.run([*by, "touch", "new"], cwd=table.parent, capture_output=True).returncode != 0
        assert "paths      5" in phibe("check", "däta.csv", cwd=table.parent, env=poor, by=by)
        assert "affine_ou" in phibe("list", cwd=table.parent, env=poor, by=by)
    finally:
        table.parent.chmod(0o755)


def test_the_makefile_holds_in_a_folder_with_spaces(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    command = ["make", "--dry-run", "--assume-old=.venv/.ready", "lab", "LAB_FOLDER=my chapters"]
    shown = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf8", check=True).stdout
    words = shlex.split(shown.replace("\\\n", " "))
    assert {f"JUPYTER_CONFIG_PATH={folder}/.jupyter", "--notebook-dir=my chapters"} <= set(words)
