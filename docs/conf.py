"""Sphinx configuration: MyST Markdown, pages for systems and studies generated from the catalog and the evidence."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import generate

import wavetank

project = "Wavetank"
author = copyright = "The Wavetank authors"  # noqa: A001
release = version = wavetank.__version__
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "why"]
html_theme = "furo"
html_title = f"Wavetank {release}"
# The catalog's words end up in tables: MyST must not take "1.5x" or "C++" for anything else.
suppress_warnings = ["myst.header"]

# Drawing takes most of the time; a build that only looks for faults of the text does without.
generate.write_pages(Path(__file__).parent / "generated", charts=not tags.has("without_charts"))  # noqa: F821  (Sphinx's)
