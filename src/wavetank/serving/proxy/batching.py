"""A worker that is fed as requests come and stepped when their time is up: continuous batching without a clock.

The rules of a step are the simulator's own (:mod:`wavetank.serving.simulator.worker`).  This module adds what happens
between steps: requests that came meanwhile join the queue at the next boundary, and a step begins where the last one
ended, not where somebody noticed.  The owner of a clock calls it; driven through simulated time it gives the
simulator's times to the picosecond.
"""

from __future__ import annotations

from collections import deque

from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.worker import Request, Worker, step_of


class SteppedWorker:
    """One worker between steps.

    Parameters
    ----------
    cluster : Cluster
        Its limits and its step time; the number of workers does not count.
    block_tokens : int, default 0
        Tokens of a prefix block; 0 without prefix caching.

    Attributes
    ----------
    worker : Worker
    ends_ps : int
        When the step in progress ends; -1 when there is none.
    steps : int
        Steps begun.
    """

    def __init__(self, cluster: Cluster, block_tokens: int = 0) -> None:
        self.cluster = cluster
        self.worker = Worker(cluster, block_tokens)
        self.ends_ps = -1
        self.steps = 0
        self._alone = (self.worker,)
        self._coming: deque[Request] = deque()

    @property
    def waiting(self) -> int:
        """Requests that are not admitted."""
        return len(self.worker.queue) + len(self._coming)

    @property
    def waiting_tokens(self) -> int:
        """The prompts of those requests, in tokens."""
        return sum(request.prompt for queue in (self.worker.queue, self._coming) for request in queue)

    def arrive(self, request: Request) -> None:
        """Take a request, stamped with its arrival; stamps never fall."""
        self._coming.append(request)

    def start(self, now_ps: int) -> None:
        """Begin a step unless one is in progress or nothing has arrived until now."""
        if self.ends_ps < 0:
            self._begin(now_ps)

    def finish(self) -> list[Request]:
        """End the step in progress at its time, begin the next one there, and return who got a token.

        Returns
        -------
        list of Request
            In the order in which the tokens come out; those of it whose ``finish_ps`` is set have all their tokens.
        """
        now_ps = self.ends_ps
        given = sorted(self.worker.decoding, key=lambda request: request.number)
        given += reversed(self.worker.ending)
        self.worker.finish_step(now_ps)
        self.ends_ps = -1
        self._begin(now_ps)
        if self.ends_ps < 0 and self._coming:
            # Nobody noticed the end of the last step until after these had come.
            self._begin(self._coming[0].arrival_ps)
        return given

    def abort(self, request: Request) -> None:
        """Let a request go that is not done; the step in progress takes as long as it was to take."""
        if request in self._coming:
            self._coming.remove(request)
        else:
            self.worker.abort(request)

    def _begin(self, now_ps: int) -> None:
        worker, coming = self.worker, self._coming
        while coming and coming[0].arrival_ps <= now_ps:
            worker.enqueue(coming.popleft())
        if worker.queue or worker.running:
            self.steps += 1
            self.ends_ps = now_ps + step_of(self._alone, self.cluster)
