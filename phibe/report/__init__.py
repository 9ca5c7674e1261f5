"""The report of a run: `report.html`, which needs nothing else, and its numbers, `quality.json`."""
