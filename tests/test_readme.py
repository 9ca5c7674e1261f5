"""The README promises nothing that does not run or is not there."""

import re
import subprocess
import sys
from pathlib import Path

import torch

from phibe.io import open_data, save_data
from phibe.systems.ou import OU

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf8")


def test_the_ten_lines_lead_from_a_table_to_new_trajectories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = OU.nonreversible().simulate(paths=60, times=torch.linspace(0, 1, 11), seed=0)
    save_data(data, "mydata.csv")
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(code, {})
    assert (tmp_path / "mine" / "report.html").exists()
    assert open_data("generated.csv").states.shape == (60, 201, 2)


def test_the_nine_files_say_what_to_read_next():
    """The method is told by nine files; each names the next one, and together they are short enough to be read."""
    (listed,) = re.findall(r"Read them in this order:\n(.*?)\.\n", README, re.S)
    files = re.findall(r"\((phibe/[\w/.]+)\)", listed)
    assert len(files) == 9
    texts = [text for name in files for text in sources(ROOT / name)]
    assert sum(text.count("\n") for text in texts) <= 2800
    for name in files[:-1]:
        assert any("Read next" in text for text in sources(ROOT / name)), name


def sources(path: Path) -> list[str]:
    return [file.read_text("utf8") for file in ([path] if path.is_file() else sorted(path.glob("*.py")))]


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_named_exists():
    named = set(re.findall(r"`?make (\w+)", README)) - {"alone"}
    makefile = (ROOT / "Makefile").read_text("utf8")
    assert {"serve", "test", "lab"} <= named
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.M)] == []


def test_the_command_line_lists_the_experiments():
    shown = subprocess.run(
        [sys.executable, "-m", "phibe", "list"], capture_output=True, encoding="utf8", check=True
    ).stdout
    assert "affine_ou" in shown and "ou_theory" in shown
