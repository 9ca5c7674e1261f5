"""Quality: what can be said of a fitted flow from the data alone, as a record of numbers with a verdict."""

from phibe.quality.measures import method_for
from phibe.quality.record import Quality, Views, assess, names_of
from phibe.quality.source import open_source, write_source

__all__ = ["Quality", "Views", "assess", "method_for", "names_of", "open_source", "write_source"]
