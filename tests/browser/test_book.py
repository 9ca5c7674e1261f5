"""A reader opens the served book: every page, its mathematics, its links, its figures, its notebook."""

import functools
import re
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import jupytext
import nbformat
import pytest
import yaml

from browser.conftest import watched

ROOT = Path(__file__).resolve().parents[2]

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
PAGES = [TOC["root"], *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"])]
CHAPTERS = [name for name in PAGES if name.startswith("notebooks/")]
SLIDER = '"name":"Slider"'  # what a page contains that has a figure with a slider, which answers without a server


def source(name: str) -> str:
    return (ROOT / f"{name}.md").read_text("utf8")


def open_page(page, served: str, name: str) -> None:
    answer = page.goto(f"{served}/book/{name}.html", wait_until="load")
    assert answer.ok
    page.wait_for_load_state("networkidle")


@pytest.fixture(scope="module")
def opened(request, served, chromium):
    """The page of this name, opened once for all the tests that look at it."""
    with watched(chromium) as page:
        open_page(page, served, request.param)
        page.name = request.param
        yield page


@pytest.fixture(scope="module")
def alive(served, chromium):
    """Whether there is something at an address inside the site, asked once."""
    with watched(chromium) as page:
        yield functools.cache(lambda url: page.request.get(url).ok)


def solutions(page):
    return page.locator("details", has=page.locator("summary", has_text="Solution"))


@pytest.mark.parametrize("opened", PAGES, indirect=True)
def test_a_page_has_its_title_its_mathematics_folded_solutions_and_links_that_lead_somewhere(served, opened, alive):
    title = re.search(r"^# (.+)$", source(opened.name), re.M)[1]
    assert title.replace("`", "") in opened.locator(".bd-article h1").first.inner_text()
    if "$" in source(opened.name):
        opened.locator("mjx-container").first.wait_for(state="attached")
        assert opened.locator("mjx-merror, mjx-container[data-mjx-error]").count() == 0
        typeset = "() => [...document.querySelectorAll('.math')].every(box => box.querySelector('mjx-container'))"
        opened.wait_for_function(typeset)
    assert (solutions(opened).count() > 0) == (opened.name in CHAPTERS)
    assert solutions(opened).and_(opened.locator("[open]")).count() == 0
    hrefs = opened.eval_on_selector_all("a[href]", "links => links.map(link => link.getAttribute('href'))")
    targets = {urldefrag(urljoin(opened.url, href)) for href in hrefs}
    here = {fragment for url, fragment in targets if url == opened.url and fragment}
    assert not [fragment for fragment in here if opened.locator(f'[id="{fragment}"]').count() == 0]
    inside = {url for url, _ in targets if url.startswith(served)}
    assert len(inside) > len(PAGES)
    assert not [url for url in inside if not alive(url)]


def test_the_landing_page_leads_to_the_book_the_chapters_and_the_apps(served, page):
    page.goto(served)
    links = page.eval_on_selector_all("main a[href]", "links => links.map(link => link.href)")
    assert len([link for link in links if "/book/notebooks/" in link]) == len(CHAPTERS)
    assert len([link for link in links if link.endswith("_explorer")]) == len(list(ROOT.glob("apps/*_explorer.py")))
    assert all(page.request.get(link).ok for link in links)
    page.get_by_text("The book", exact=True).click()
    page.locator(".bd-article h1").first.wait_for()
    assert page.request.get(f"{served}/book").url == f"{served}/book/"


def test_a_slider_moves_the_picture(served, page, book):
    name = next((name for name in CHAPTERS if SLIDER in (book / f"{name}.html").read_text("utf8")), None)
    assert name, "no chapter has a figure with a slider"
    open_page(page, served, name)
    figure = page.locator(".cell_output:has(.noUi-handle)").first
    figure.scroll_into_view_if_needed()

    def picture() -> list[str]:
        return figure.locator("canvas").evaluate_all("all => all.map(canvas => canvas.toDataURL())")

    before = picture()
    page.wait_for_timeout(500)
    assert before == picture()  # it does not move by itself
    figure.locator(".noUi-handle").first.focus()
    for _ in range(50):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(50)
        if picture() != before:
            return
    pytest.fail("the slider was moved and the picture stayed the same")


@pytest.mark.parametrize("opened", CHAPTERS[:1], indirect=True)
def test_a_solution_unfolds_and_the_notebook_of_a_chapter_can_be_downloaded(opened):
    solutions(opened).first.locator("summary").click()
    assert solutions(opened).and_(opened.locator("[open]")).count() == 1
    opened.get_by_role("button", name="Download this page").click()
    with opened.expect_download() as download:
        opened.locator(".btn-download-notebook-button").click()
    notebook = nbformat.read(download.value.path(), as_version=4)
    nbformat.validate(notebook)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code == [
        cell.source for cell in jupytext.reads(source(opened.name), "md:myst").cells if cell.cell_type == "code"
    ]


def test_the_search_finds_a_word_of_the_book(served, page):
    page.goto(f"{served}/book/search.html?q=velocity")
    page.locator("#search-results li a").first.wait_for()
