"""A file of one's own, checked in the browser for its size before any of it is sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import panel as pn
import param

HERE = Path(__file__).parent
STYLE = """
label { display: block; font-size: .88rem; line-height: 1.7 }
input { display: block; width: 100%; font: inherit; color: inherit }
input::file-selector-button { font: inherit; padding: .3rem .7rem; margin-right: .6rem; cursor: pointer;
  border: 1px solid #0d6efd; border-radius: .3rem; background: none; color: inherit }
input:focus-visible { outline: 3px solid #56b4e9; outline-offset: 2px }
"""


class Upload(pn.custom.JSComponent):
    """A chooser of files; `take(name, size, content)` is called with each, without a content if it is above `most`."""

    label = param.String("Your own file")
    accept = param.String(doc="Suffixes, as the browser's dialogue wants them.")
    most = param.Integer(doc="Bytes above which a file is not sent.")

    _esm = (HERE / "upload.mjs").read_text("utf8")
    _stylesheets: ClassVar[list[str]] = [STYLE]

    def __init__(self, take: Callable[..., Any], **options: Any):
        super().__init__(**options)
        self.take = take

    def _handle_msg(self, message: dict[str, Any]) -> None:
        name, size, content = str(message["name"]), int(message["size"]), message["content"]
        pn.state.execute(partial(self.take, name, size, content and bytes(content)))
