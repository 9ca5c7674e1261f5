"""Addresses that the server knows besides the apps: the book without its slash, and the reports of listed runs."""

from tornado.web import HTTPError, RedirectHandler, RequestHandler

try:
    from apps.run_list import listed
except ImportError:  # with the folder of the apps itself on the path
    from run_list import listed


class Report(RequestHandler):
    """The report.html of a run, which is looked up by its name: no path is made of what an address says."""

    def get(self, name: str) -> None:
        run = listed().get(name)
        page = run.folder / "report.html" if run else None
        if page is None or not page.exists():
            raise HTTPError(404, "no such report")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(page.read_text("utf8"))


ROUTES = [("/book", RedirectHandler, {"url": "/book/", "permanent": False}), ("/report/(.+)", Report, {})]
