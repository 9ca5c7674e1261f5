"""The chapters run, and keep to the book's form. They are executed once, by the build of the book."""

from pathlib import Path
from statistics import median, quantiles

import jupytext
import yaml
from jupyter_cache import get_cache

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("*.md"))


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def lengths(notebook) -> list[int]:
    """Lines of each code cell, blank ones and comments left out."""
    lines = (
        [line for line in cell.source.splitlines() if line.strip() and line.strip()[0] != "#"]
        for cell in code_cells(notebook)
    )
    return [len(cell) for cell in lines]


def keeps_the_form(sizes: list[int]) -> bool:
    """Median at most 8 lines, nine tenths at most 20."""
    return median(sizes) <= 8 and quantiles(sizes, n=10, method="inclusive")[-1] <= 20


def test_every_chapter_runs_without_an_error(book):
    cache = get_cache(ROOT / "_build" / ".jupyter_cache")  # what the build recorded
    for path in CHAPTERS:
        record = cache.match_cache_notebook(jupytext.read(path))
        cells = code_cells(cache.get_cache_bundle(record.pk).nb)
        assert len(cells) == len(code_cells(jupytext.read(path))) > 0, path.stem
        assert all(cell.execution_count for cell in cells), path.stem
        outputs = [output for cell in cells for output in cell.outputs]
        assert outputs, path.stem
        errors = [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
        assert errors == [], path.stem


def test_the_cells_of_every_chapter_are_short():
    assert [path.stem for path in CHAPTERS if not keeps_the_form(lengths(jupytext.read(path)))] == []


def test_long_cells_are_noticed():
    assert keeps_the_form([8] * 9 + [40])
    assert not keeps_the_form([9] * 10)
    assert not keeps_the_form([3] * 8 + [21] * 4)


def test_every_chapter_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    listed = {entry["file"] for part in toc["parts"] for entry in part["chapters"]}
    assert {f"notebooks/{path.stem}" for path in CHAPTERS} == {name for name in listed if name.startswith("notebooks/")}


def test_no_cell_may_fail_be_skipped_or_be_hidden_altogether():
    cells = [(path.stem, cell) for path in CHAPTERS for cell in jupytext.read(path).cells]
    used = {(name, tag) for name, cell in cells for tag in cell.metadata.get("tags", [])}
    forbidden = {"raises-exception", "skip-execution", "remove-input", "remove-output", "remove-cell"}
    assert used and [(name, tag) for name, tag in used if tag in forbidden] == []
