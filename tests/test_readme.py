"""The README promises nothing that does not run or is not there."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf8")


def test_the_ten_line_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(code, {})
    assert "500 paths × 201 times" in capsys.readouterr().out


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
