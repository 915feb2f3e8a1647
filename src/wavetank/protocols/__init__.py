"""Protocols: distributed algorithms written once that live four lives, and checkers for what others wrote.

A node reacts to messages, timers and requests, and acts through its context alone.  The same class runs in rounds (fast
sweeps), as events (delays and loss), on sockets (real processes) and in an explorer of every interleaving.
"""
