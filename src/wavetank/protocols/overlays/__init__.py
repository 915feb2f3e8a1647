"""Overlays as the index of a directory: Chord, Pastry and Kademlia under one control plane.

:mod:`~wavetank.protocols.overlays.directory` is the node that all three share; a registry and gossip bound them from
both sides in the study ``agent-discovery``.
"""
