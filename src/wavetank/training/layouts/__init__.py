"""How the parameters of a model are laid out over the ranks that share them (fully sharded data parallelism).

Every rank keeps a part of each parameter, gradient and optimiser state; a whole bucket, a layer say, is gathered before
it is computed with, and its gradients are summed and scattered afterwards.  A *sharder* says where the cuts are
(:mod:`~wavetank.training.layouts.interface`): whether blocks that quantisation or Muon needs whole are cut, how much is
padding, and what is copied around collectives.  The study is ``fsdp-layout``.
"""
