"""One engine for consistency models: what an observer must have seen, how it orders the rest, and how fresh it must be.

:func:`~wavetank.check.consistency.engine.judge` says of a history and a named model whether the model allows it,
with a witness and the longest good prefix; :data:`~wavetank.check.consistency.configurations.MODELS` is the table
of the models, each a point of one coordinate system.
"""
