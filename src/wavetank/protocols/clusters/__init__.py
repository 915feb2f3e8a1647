"""Clusters: a protocol of the catalog as real processes over sockets, with ``wavetank launch cluster``.

The mechanism is :mod:`wavetank.live`; this package has the command, which makes the clients' operations, the outages
and the table of what happened.
"""
