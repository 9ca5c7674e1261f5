"""Addresses that the server knows besides the apps: the book, finished or not, and the reports of listed runs."""

from html import escape
from pathlib import Path

from tornado.web import HTTPError, RedirectHandler, RequestHandler, StaticFileHandler

from apps.run_list import listed
from book import build

SOURCES = Path(build.__file__).resolve().parent
WAITING = """<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta http-equiv="refresh" content="3">
  <title>PhiBE-Flow: no book yet</title>
  <link rel="icon" href="/book/_static/favicon.svg">
  <style>
    :root {{ color-scheme: light dark }}
    body {{ font: 17px/1.5 sans-serif; margin: 3rem auto; max-width: 62rem; padding: 0 1rem }}
    pre {{ font-size: .8rem; overflow-x: auto }}
  </style>
</head>
<body>
  <h1>{state}</h1>
  <p>This page looks again every three seconds. <a href="/">The apps are ready.</a></p>
  <pre>{messages}</pre>
</body>
</html>"""


def book_state() -> str:
    """What a reader should know of the book; "" if it is finished."""
    if build.finished() == build.HTML:
        return ""
    if build.building():
        state = "The book is being built, which takes some minutes"
    else:
        state = "The build of the book failed" if build.LOG.exists() else "The book is not built yet"
    return state + ("; until then, this is the previous one." if build.finished() else ".")


class Book(StaticFileHandler):
    """A page of the finished book; until there is one, a page that says what is happening and looks again."""

    def initialize(self) -> None:
        self.book = build.finished()
        super().initialize(str(self.book or SOURCES), default_filename="index.html")

    async def get(self, path: str, include_body: bool = True) -> None:
        if self.book or path.startswith("_static/"):  # logo and icon of the other pages, from the sources at first
            return await super().get(path, include_body)
        self.set_status(202)  # there, but not complete; an error would fill the terminal every three seconds
        self.set_header("Cache-Control", "no-store")
        lines = build.messages(3 if build.building() else 60)
        self.finish(WAITING.format(state=book_state(), messages=escape(lines)))

    def compute_etag(self) -> None:
        """None: Tornado hashes a path once, and a new book has new pages at the same paths. Times of change tell."""

    def set_extra_headers(self, path: str) -> None:
        self.set_header("Cache-Control", "no-cache")


class Report(RequestHandler):
    """The report.html of a run, which is looked up by its name: no path is made of what an address says."""

    def get(self, name: str) -> None:
        run = listed().get(name)
        page = run.folder / "report.html" if run else None
        if page is None or not page.exists():
            raise HTTPError(404, "no such report")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(page.read_text("utf8"))


ROUTES = [
    ("/book", RedirectHandler, {"url": "/book/", "permanent": False}),
    ("/book/(.*)", Book, {}),
    ("/report/(.+)", Report, {}),
]
