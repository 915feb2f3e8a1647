"""How a training job goes on when replicas of its model die.

Every step must sum the gradients of the same microbatches, however many replicas are left.  ``quotas`` divides
microbatches among the living, and ``trainer`` carries out steps that survive the death of a replica in the middle of a
reduction.  The replicas are ranks of :mod:`wavetank.live.ranks`.
"""
