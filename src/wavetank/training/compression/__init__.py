"""How numbers are summed over many devices when the network is slower than a codec.

An all-reduce sends every number twice.  Numbers may be sent in fewer bits: cast, quantised, coded by their entropy,
once or at every hop; then errors, codecs and the network decide who wins.  A *scheme* says what travels
(:mod:`~wavetank.training.compression.interface`), the ring is the same for all
(:mod:`~wavetank.training.compression.ring`); the study is ``compressed-collectives``.
"""
