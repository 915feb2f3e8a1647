"""Self-stabilising leader election in populations: exactly one leader, from any state.

Agents meet in random pairs; :mod:`~wavetank.protocols.leaders.interface` states what a protocol of this kind defines,
:mod:`~wavetank.protocols.leaders.simulation` runs it exactly, and the other modules hold one protocol each.
"""
