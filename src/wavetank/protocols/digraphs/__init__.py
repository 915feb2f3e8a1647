"""Byzantine consensus in directed networks: which networks allow it, and algorithms for those that do.

:mod:`~wavetank.protocols.digraphs.conditions` decides the conditions on the graph, the other modules hold the
algorithms (with signatures, without, approximate) and the adversaries of the study ``byzantine-digraphs``.
"""
