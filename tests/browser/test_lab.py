"""A reader opens a chapter in JupyterLab with a double click and runs it, offline."""

import re
from pathlib import Path

import pytest

CHAPTER = min(path.name for path in Path(__file__).resolve().parents[2].glob("notebooks/*.md"))
CELLS = "() => jupyterapp.shell.currentWidget.content.model.sharedModel.cells.map(cell => cell.toJSON())"
DONE = f"() => ({CELLS})().every(cell => cell.cell_type !== 'code' || cell.execution_count)"
# JupyterLab sees one cell at a time: it says so of references whose target only the book knows.
PROSE = r"((Cross reference target was not found|Legacy syntax used for link target).*\n?)+"
IDLE = "() => jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"


@pytest.mark.slow
def test_a_double_click_opens_a_chapter_as_a_notebook_and_run_all_works(lab, page):
    page.goto(lab.url)
    page.locator(".jp-DirListing-item", has_text=CHAPTER).dblclick()
    page.locator(".jp-NotebookPanel .jp-Notebook .jp-Cell").first.wait_for()
    page.wait_for_function(IDLE)
    assert page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.kernelDisplayName").startswith("Python 3")

    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(DONE, timeout=300_000)
    page.wait_for_function(IDLE, timeout=300_000)

    code = [cell for cell in page.evaluate(CELLS) if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert code
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    page.seen.errors[:] = [error for error in page.seen.errors if not re.fullmatch(PROSE, error)]
    page.locator(".jp-OutputArea canvas").first.wait_for(state="attached")  # a figure is painted, with no CDN at hand
