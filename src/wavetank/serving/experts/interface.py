"""What a rule of placement learns from, what it answers, and what it sees of requests that are to be sent somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

Numbers = NDArray[np.int64]
Shares = NDArray[np.float64]

# Tables have a row for each token and a column for each expert.
MOST = 1 << 24


@dataclass(frozen=True, kw_only=True)
class RoutingTrace:
    """Which experts tokens were routed to.

    Parameters
    ----------
    tokens : int64 array (tokens,)
        Ids of the tokens of all requests, one request behind the other.
    starts : int64 array (requests + 1,)
        Where each request begins; the last is the number of tokens.
    prompts : int64 array (requests,)
        Tokens of each request that are known before it is sent anywhere; the others are generated.
    routes : int64 array (layers, tokens, experts per token)
        Experts of each token in each layer, all different.
    experts : int
        Of each layer.
    vocabulary : int
        Ids are below it.

    Raises
    ------
    BadValueError
        If the arrays do not belong together.
    """

    tokens: Numbers
    starts: Numbers
    prompts: Numbers
    routes: Numbers
    experts: int
    vocabulary: int

    def __post_init__(self) -> None:
        for name, axes in (("tokens", 1), ("starts", 1), ("prompts", 1), ("routes", 3)):
            array = getattr(self, name)
            if array.ndim != axes or array.dtype.kind not in "iu":
                raise _unfit(name, f"{array.dtype}, shape {array.shape}", f"whole numbers, axes: {axes}")
        for name in ("experts", "vocabulary"):
            if not 1 <= getattr(self, name) <= MOST:
                raise _unfit(name, getattr(self, name), f"1 to {MOST}")
        many = len(self.tokens)
        lengths = np.diff(self.starts)
        if self.routes.shape[1] != many or not all(self.routes.shape):
            raise _unfit("routes", self.routes.shape, f"(layers, {many}, experts per token), none of them 0")
        if len(self.starts) < 2 or self.starts[0] != 0 or self.starts[-1] != many or lengths.min() < 1:
            raise _unfit("starts", self.starts[:8].tolist(), f"rising from 0 to {many}, at least one request")
        if self.prompts.shape != lengths.shape or (self.prompts < 1).any() or (self.prompts > lengths).any():
            raise _unfit("prompts", self.prompts[:8].tolist(), "one per request, from 1 to the request's tokens")
        if self.tokens.min() < 0 or self.tokens.max() >= self.vocabulary:
            raise _unfit("tokens", int(self.tokens.max()), f"0 to {self.vocabulary - 1}")
        if self.routes.min() < 0 or self.routes.max() >= self.experts:
            raise _unfit("routes", int(self.routes.max()), f"experts 0 to {self.experts - 1}")
        ordered = np.sort(self.routes, axis=2)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise _unfit("routes", "a token with one expert twice", "different experts of a token in a layer")

    @property
    def layers(self) -> int:
        """Return how many layers have experts."""
        return len(self.routes)

    @property
    def requests(self) -> int:
        """Return how many requests there are."""
        return len(self.prompts)

    def owners(self) -> Numbers:
        """Return the request of each token."""
        return np.repeat(np.arange(self.requests), np.diff(self.starts))

    def part(self, requests: Sequence[int] | Numbers) -> RoutingTrace:
        """Return some of the requests, in the given order.

        Parameters
        ----------
        requests : sequence of int
        """
        chosen = np.asarray(requests, np.int64)
        lengths = np.diff(self.starts)[chosen]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.repeat(self.starts[chosen] - starts[:-1], lengths) + np.arange(starts[-1])
        return RoutingTrace(
            tokens=self.tokens[places], starts=starts, prompts=self.prompts[chosen], routes=self.routes[:, places],
            experts=self.experts, vocabulary=self.vocabulary,
        )  # fmt: skip


def _unfit(name: str, given: object, allowed: str) -> BadValueError:
    return BadValueError(f"The {name} of a routing trace do not fit.", given=given, allowed=allowed)


class Seen(NamedTuple):
    """A request that waits to be sent to a device.

    Attributes
    ----------
    prompt : int64 array (tokens,)
        What is known of it.
    routes : int64 array (layers, all tokens of the request, experts per token), optional
        What it will do; only for a rule that is allowed to know.
    """

    prompt: Numbers
    routes: Numbers | None = None


class Batch(NamedTuple):
    """Tokens that every device has after attention, and that are to be divided among the devices.

    Attributes
    ----------
    tokens : int64 array (tokens,)
    before : int64 array (2, tokens)
        Device that had most of the token's experts one and two layers ago; -1: there is no such layer.
    routes : int64 array (tokens, experts per token), optional
        What the router will choose; only for a rule that is allowed to know.
    """

    tokens: Numbers
    before: Numbers
    routes: Numbers | None = None


class Plan(Protocol):
    """Where experts are, and where requests and tokens go."""

    @property
    def experts(self) -> Numbers:
        """Return the device of each expert: (layers, experts), equally many per device."""
        ...

    def send(self, waiting: Sequence[Seen]) -> Numbers:
        """Return a device for each request of a round, at most ``ceil(requests / devices)`` requests per device.

        Parameters
        ----------
        waiting : sequence of Seen
            In order of arrival.
        """
        ...

    def split(self, layer: int, batch: Batch) -> Numbers:
        """Return a device for each token of a batch, at most ``ceil(tokens / devices)`` tokens per device.

        Parameters
        ----------
        layer : int
        batch : Batch
        """
        ...


class ExpertPlacement(Protocol):
    """Learns a plan from routes that were seen."""

    clairvoyant: bool

    def fit(self, seen: RoutingTrace, devices: int, *, whole_requests: bool) -> Plan:
        """Return a plan.

        Parameters
        ----------
        seen : RoutingTrace
            For a clairvoyant rule, the routes it will be judged by.
        devices : int
            A divisor of the number of experts.
        whole_requests : bool
            Whether requests are sent to devices (attention is data-parallel), or their tokens are divided anew in
            each layer (attention is tensor-parallel).
        """
        ...


def check_devices(trace: RoutingTrace, devices: int) -> None:
    """Refuse devices among which experts cannot be divided equally.

    Parameters
    ----------
    trace : RoutingTrace
    devices : int

    Raises
    ------
    BadValueError
        If an expert would be left over, or a device would have none.
    """
    if devices < 1 or trace.experts % devices:
        raise BadValueError(
            "Experts cannot be divided equally among devices.", given=f"{trace.experts} experts, {devices} devices",
            allowed="a number of devices that divides the number of experts",
        )  # fmt: skip
