"""File synchronisation: four ways to carry files between devices, one accounting of what they lose.

``timeline`` sends single files and lets the latest time win, ``vectors`` keeps a version vector for every file,
``causal`` sends closed snapshots and moves one head by compare-and-set, ``bilateral`` hands snapshots over with a token
whose whereabouts both ends of a link always know.  Every engine is a node that reaches a device's files through a
:class:`~wavetank.protocols.filesync.tree.Tree`: in memory when it is simulated, a directory when it runs for real.
"""
