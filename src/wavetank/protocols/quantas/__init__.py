"""QUANTAS 2 in Python: its experiment files, its rounds and channels, and the algorithms that come with it.

:mod:`~wavetank.protocols.quantas.rounds` runs them, :mod:`~wavetank.protocols.quantas.experiments` reads the files of
the published program, and the study ``quantas-speed`` measures both side by side.
"""
