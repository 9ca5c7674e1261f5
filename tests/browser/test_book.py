"""A reader opens the served book: every page, its mathematics, its links, its figures, its notebook."""

import re
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import jupytext
import nbformat
import pytest
import yaml

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


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_with_its_title_and_its_mathematics(served, page, name):
    open_page(page, served, name)
    title = re.search(r"^# (.+)$", source(name), re.M)[1]
    assert title.replace("`", "") in page.locator(".bd-article h1").first.inner_text()
    if "$" in source(name):
        page.locator("mjx-container").first.wait_for(state="attached")
        assert page.locator("mjx-merror, mjx-container[data-mjx-error]").count() == 0
        typeset = "() => [...document.querySelectorAll('.math')].every(box => box.querySelector('mjx-container'))"
        page.wait_for_function(typeset)


def test_every_link_inside_the_site_leads_somewhere(served, page):
    checked, broken = set(), []
    for name in PAGES:
        open_page(page, served, name)
        hrefs = page.eval_on_selector_all("a[href]", "links => links.map(link => link.getAttribute('href'))")
        targets = {urldefrag(urljoin(page.url, href)) for href in hrefs}
        here = {fragment for url, fragment in targets if url == page.url and fragment}
        broken += [f"{name}#{fragment}" for fragment in here if page.locator(f'[id="{fragment}"]').count() == 0]
        inside = {url for url, _ in targets if url.startswith(served)} - checked
        broken += [f"{name} -> {url}" for url in sorted(inside) if not page.request.get(url).ok]
        checked |= inside
    assert not broken
    assert len(checked) > len(PAGES)


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


@pytest.mark.parametrize("name", CHAPTERS)
def test_solutions_are_folded_until_they_are_asked_for(served, page, name):
    open_page(page, served, name)
    solutions = page.locator("details", has=page.locator("summary", has_text="Solution"))
    assert solutions.count() > 0
    opened = solutions.and_(page.locator("details[open]"))
    assert opened.count() == 0
    solutions.first.locator("summary").click()
    assert opened.count() == 1


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_notebook_of_a_chapter_can_be_downloaded(served, page, name):
    open_page(page, served, name)
    page.get_by_role("button", name="Download this page").click()
    with page.expect_download() as download:
        page.locator(".btn-download-notebook-button").click()
    notebook = nbformat.read(download.value.path(), as_version=4)
    nbformat.validate(notebook)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code == [cell.source for cell in jupytext.reads(source(name), "md:myst").cells if cell.cell_type == "code"]


def test_the_search_finds_a_word_of_the_book(served, page):
    page.goto(f"{served}/book/search.html?q=velocity")
    page.locator("#search-results li a").first.wait_for()
