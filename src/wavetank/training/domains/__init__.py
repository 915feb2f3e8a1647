"""One sample that no process holds whole: its space divided over processes, forward and backward.

:mod:`~wavetank.training.domains.sharded` is the tensor, :mod:`~wavetank.training.domains.exchange` what processes
exchange, and :mod:`~wavetank.training.domains.halo`, :mod:`~wavetank.training.domains.ring` and
:mod:`~wavetank.training.domains.norms` are the handlers.  The study ``domain-parallel`` compares with other ways on
fields of the atmosphere.  All but the interface needs the extra ``torch``.
"""
