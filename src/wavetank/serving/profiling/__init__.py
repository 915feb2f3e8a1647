"""Profiling of language models that never measures the same operation twice.

A model's forward pass is traced on shapes alone (``trace``); every size in it is found to come from the model or from
the request; what is left after the request's sizes became symbols is a signature, under which an operation is measured
once for all models (``OperationDatabase``).  The sum of a model's operations is a step time of the simulator.

* ``profile(model, database)`` measures what is missing, ``step_time(database, profiled)`` gives the step time;
* ``trace`` and ``profile_operations`` do the same for any torch module;
* ``wavetank launch profile --model MODEL`` from the command line; study ``profiling-reuse``.

All of it but the configurations needs torch (extra ``profiling``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.serving.profiling.database import OperationDatabase
    from wavetank.serving.profiling.decoder import Decoder
    from wavetank.serving.profiling.measuring import Grid, Timing
    from wavetank.serving.profiling.models import DecoderConfig, from_zoo, read_model, zoo
    from wavetank.serving.profiling.profiled import (
        Profiled,
        Variant,
        kept_step_time,
        profile,
        profile_operations,
        step_time,
        traced,
    )
    from wavetank.serving.profiling.tracing import RequestSizes, Trace, trace

__getattr__, __dir__, __all__ = lazy_names(__name__)
