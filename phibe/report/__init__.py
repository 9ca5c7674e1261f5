"""Report: the quality of a run as one page, `report.html`, that needs nothing else, and its numbers, `quality.json`."""

from phibe.report.write import write_report

__all__ = ["write_report"]
