"""How many requests may be sent a second time.

When servers are short of capacity every retry is a request more for those that are left, and a rule that retries each
failure turns a slow minute into an outage.  Retries are allowed in proportion to the requests of the last while, and a
few more, so that a quiet router may retry as well.

Source: the retry budgets of Twitter's Finagle and of Linkerd.

Differs from the source:

1. Time is counted in tenths of the window, so that memory does not grow with the load.
"""

from __future__ import annotations

from collections import deque

_PARTS = 10


class RetryBudget:
    """Allows retries in proportion to requests.

    Parameters
    ----------
    share : float
        Retries allowed for each request of the window.
    floor : int
        Retries allowed in every window, whatever the requests.
    window_s : float
        How far back requests and retries count, in s.

    Examples
    --------
    >>> budget = RetryBudget(share=0.5, floor=0, window_s=10.0)
    >>> budget.request(0.0), budget.request(0.1), budget.retry(0.2), budget.retry(0.3)
    (None, None, True, False)
    """

    def __init__(self, share: float, floor: int, window_s: float) -> None:
        self._share, self._floor = share, floor
        self._part_s = window_s / _PARTS
        # Part of the time, requests in it, retries in it; the oldest first.
        self._parts: deque[list[int]] = deque()
        self._requests = 0
        self._retries = 0

    def request(self, now_s: float) -> None:
        """Count a request that came from a client."""
        self._part(now_s)[1] += 1
        self._requests += 1

    def retry(self, now_s: float) -> bool:
        """Say whether one more may be sent again; it counts as sent then."""
        part = self._part(now_s)
        if self._retries + 1 > self._floor + self._share * self._requests:
            return False
        part[2] += 1
        self._retries += 1
        return True

    def _part(self, now_s: float) -> list[int]:
        number = int(now_s / self._part_s)
        parts = self._parts
        while parts and parts[0][0] <= number - _PARTS:
            _, requests, retries = parts.popleft()
            self._requests -= requests
            self._retries -= retries
        if not parts or parts[-1][0] != number:
            parts.append([number, 0, 0])
        return parts[-1]
