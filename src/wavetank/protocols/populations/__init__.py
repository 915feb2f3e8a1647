"""Population protocols: anonymous agents of few states that meet in random pairs.

:mod:`~wavetank.protocols.populations.interface` says what a protocol defines,
:mod:`~wavetank.protocols.populations.simulator` runs it exactly, one meeting at a time or in batches; compilers turn
a regular language into a protocol of agents in an order.
"""
