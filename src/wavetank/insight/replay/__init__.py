"""Chakra execution traces: read, checked, made from what torch recorded, replayed on other systems, and generated.

One file says what one rank did: operations, sizes, dependencies, durations, groups.  A job is the files of its ranks.

>>> from wavetank.insight.replay import critical_path, read_et, simulate, validate      # doctest: +SKIP
>>> traces = read_et("job/")                                                             # doctest: +SKIP
>>> validate(traces)                                                                     # doctest: +SKIP
()
>>> critical_path(simulate(traces)).by_kind_ps()                                         # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.insight.replay.checks import Problem, validate
    from wavetank.insight.replay.convert import from_pytorch, step_span
    from wavetank.insight.replay.generator import TraceModel, generate, likeness
    from wavetank.insight.replay.reading import read_et, write_et
    from wavetank.insight.replay.timeline import CriticalPath, Timeline, critical_path, simulate

__getattr__, __dir__, __all__ = lazy_names(__name__)
