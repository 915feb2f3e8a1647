"""How many branches of one request decode at the same time.

Some requests have parts that do not depend on each other: the points of an outline, the sub-problems of a proof.  Such
*branches* may share a step, and the request is done sooner; but every sequence in a step lengthens it for all requests
of the batch.  A controller chooses before each step which branches run besides the one that every request always runs
(:mod:`~wavetank.serving.branches.interface`).  :mod:`~wavetank.serving.branches.steps` is the engine that takes the
steps, :mod:`~wavetank.serving.branches.workload` makes the requests; the study is ``branch-admission``.
"""
