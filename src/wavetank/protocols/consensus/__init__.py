"""Consensus: one log that all correct nodes agree on.

:class:`~wavetank.protocols.consensus.raft.Raft` tolerates crashes, :class:`~wavetank.protocols.consensus.pbft.PBFT`
Byzantine nodes; both apply commands to the key-value store of :mod:`~wavetank.protocols.consensus.store`.
"""
