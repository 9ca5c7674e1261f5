"""Colours: truth is black, each method has one colour in the book, the apps and the reports."""

COLORS = {
    "exact": "#111111",
    "phibe": "#0072b2",
    "phibe2": "#56b4e9",
    "isotropic": "#cc79a7",
    "stratonovich": "#8c1c3f",
    "symmetric2": "#86a800",
    "symmetric4": "#4b5320",
    "centred": "#7a4fb5",
    "symmetric": "#009e73",
    "regression": "#d55e00",
    "drift": "#d55e00",  # what regression finds
    "persistence": "#8a8f98",
    "leaning": "#3d5a80",
    "stirred": "#c2185b",
    "balanced": "#8e24aa",
    "pfi": "#e69f00",
    "mcvd": "#7b4a2d",
    "samples": "#9aa3b2",
    "bound": "#b8860b",
}
"""One colour for each method, by the name it has in API, reports and menus."""
