"""Which clock or power limit saves energy in the decode phase of language models without slowing it down.

In decode a GPU waits for its memory: it draws far less than its power limit, so that a limit does nothing, while the
multiprocessors' clock can be lowered without loss.  An *architecture* says what a step moves and computes
(:mod:`~wavetank.serving.power.architectures`), the *model* what that takes and draws at a clock or under a limit
(:mod:`~wavetank.serving.power.dvfs`), and the *harness* measures phases one by one and throws away runs in which the
clock left its set value (:mod:`~wavetank.serving.power.harness`), on a simulated GPU or, reading only, on a real one
(:mod:`~wavetank.serving.power.nvml`).  Study ``decode-energy``.
"""
