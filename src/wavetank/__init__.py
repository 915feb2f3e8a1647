"""Wavetank: published distributed-systems ideas as working parts.

Try them side by side on your own workload with one call, read one report, launch the winner::

    import wavetank
    result = wavetank.compare("llm-routing", workers=8)
    print(result.summary())

Names are loaded on first use: importing the package costs a few milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.errors import WavetankError
    from wavetank.run.comparison import Comparison, Interrupted, compare, load, search, studies

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__)
