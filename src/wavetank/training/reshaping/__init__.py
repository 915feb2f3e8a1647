"""How a training job goes on when single GPUs of a layout become slow or die.

In a layout of replicas, stages and tensor-parallel groups one slow GPU slows its group, then its pipeline, then all
replicas.  Two questions follow.  *Is a GPU slow, or is this batch long?*  A watch predicts every step from the lengths
of its sequences (:mod:`~wavetank.training.reshaping.step_watch`); study ``slow-ranks``.  *What now?*  A reshaper plans
who computes what from the speeds that are left (:mod:`~wavetank.training.reshaping.reshape`); study ``reshaping``.

:mod:`~wavetank.training.reshaping.live` watches real processes that train, one of which may be slowed down.
"""
