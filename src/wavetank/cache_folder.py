"""Where Wavetank keeps what it can make or fetch again: one folder of the user's."""

from __future__ import annotations

import os
from pathlib import Path

# Names the file into which processes write what they compile, for whom shows progress.
COMPILING_FILE = "WAVETANK_COMPILING"


def cache_folder() -> Path:
    """Return the user's cache folder for Wavetank; it need not exist.

    ``$XDG_CACHE_HOME/wavetank`` where that variable holds an absolute path (the XDG rules ignore relative ones), else
    ``~/.cache/wavetank``.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "wavetank"
