"""JupyterLab for the chapters: its figures work without a network."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
c = get_config()  # noqa: F821
c.ServerApp.jpserver_extensions = {"panel_files": True}
