"""How sequences of very different lengths share the attention of one training step among many ranks.

A batch of pre-training mixes texts of hundreds of tokens with some of hundreds of thousands.  Attention costs the
square of a length, so that the long ones must be shared out, and short ones must not be cut into crumbs that no kernel
is fast on.  A *sharer* says who computes what and who sends what (:mod:`~wavetank.training.context.interface`); the
costs are the same for all (:mod:`~wavetank.training.context.costs`); the study is ``context-parallel``.
"""
