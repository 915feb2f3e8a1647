"""Which node runs which service, and which share of it, where radio functions and AI services use the same machines.

Two time scales: every ten milliseconds and at every arrival each node divides its GPU and CPU among the jobs it has
(:mod:`~wavetank.serving.sharing.shares`, :mod:`~wavetank.serving.sharing.nodes`); every few seconds a controller may
move services between nodes (:mod:`~wavetank.serving.sharing.interface`), which stops them for a while.  The study
``ai-ran`` asks what the slow decisions, the fast ones, and a critic between an agent and the nodes are worth.
"""
