"""One link that several transfers share, a rule that says when a copy steps aside, and a limit for real copies.

A transfer alone takes ``alpha + bytes / rate``.  Transfers at one time share the link by their weights, as packets of
several flows do: with weights a and b they progress at a / (a + b) and b / (a + b) of the rate.  A copy in chunks asks
its :class:`YieldRule` before each of them; the chunk that is under way goes on beside whatever begins.  The same rule
decides in a simulation, on a :class:`SharedLink`, and between real threads, which a :class:`TokenBucket` slows down to
the rate of a link.

Source: L. Kleinrock, "Time-shared systems: a theoretical treatment", JACM 14(2), 1967, for processor sharing; ITU-T
I.371, the generic cell rate algorithm, for the bucket.

Differs from the sources:

1. Work left is counted in parts of a picosecond that every sum of weights up to 12 divides, so that progress is exact;
   a transfer ends at the first whole picosecond at which it can.
2. The bucket answers when the last byte has passed, not whether a packet conforms.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wavetank.errors import BadValueError

PS_PER_S = 10**12
MOST_WEIGHT = 12
"""The most that the weights of transfers at one time may add up to."""
MOST_BYTES = 1 << 62
# The least common multiple of 1 to 12.
_PARTS = 27_720
_PS_PER_NS = 1000


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadValueError(
            "This is no figure of a link.", given=value, allowed=f"a whole number, {low} to {high}", where=name
        )


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """What transfers take on a link without others.

    Parameters
    ----------
    bytes_per_s : int
        1 to 10^18.
    alpha_ps : int
        Of each transfer before its first byte, ps.

    Examples
    --------
    >>> LinkRate(bytes_per_s=50_000_000_000, alpha_ps=5_000_000).work_ps(16_000_000) / 1e6
    325.0
    """

    bytes_per_s: int
    alpha_ps: int = 0

    def __post_init__(self) -> None:
        _whole("bytes_per_s", self.bytes_per_s, 1, 10**18)
        _whole("alpha_ps", self.alpha_ps, 0, 10**15)

    def work_ps(self, n_bytes: int) -> int:
        """Return what a transfer takes alone, ps, rounded up; nothing for no bytes.

        Parameters
        ----------
        n_bytes : int
        """
        _whole("n_bytes", n_bytes, 0, MOST_BYTES)
        return self.alpha_ps - (-n_bytes * PS_PER_S // self.bytes_per_s) if n_bytes else 0

    def chunked_ps(self, n_bytes: int, chunk_bytes: int) -> int:
        """Return what transfers of chunks take one after the other, ps.

        Parameters
        ----------
        n_bytes : int
            Of all chunks.
        chunk_bytes : int
            Of each, the last excepted.
        """
        _whole("n_bytes", n_bytes, 0, MOST_BYTES)
        _whole("chunk_bytes", chunk_bytes, 1, MOST_BYTES)
        whole, rest = divmod(n_bytes, chunk_bytes)
        return whole * self.work_ps(chunk_bytes) + self.work_ps(rest)


class _Transfer(NamedTuple):
    left: int  # parts of a picosecond
    weight: int


class SharedLink:
    """Transfers that are under way, and when the next of them ends.

    Time only goes on; ties are settled in the order in which transfers began.

    Examples
    --------
    >>> link = SharedLink()
    >>> link.start(0, "copy", 100)
    >>> link.start(40, "collective", 10)
    >>> link.next_end_ps(), link.advance(60), link.next_end_ps()
    (60, ['collective'], 110)
    """

    def __init__(self) -> None:
        self.now_ps = 0
        self._under_way: dict[Hashable, _Transfer] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._under_way

    def start(self, now_ps: int, name: Hashable, work_ps: int, *, weight: int = 1) -> None:
        """Begin a transfer.

        Parameters
        ----------
        now_ps : int
            Not before anything that was said, nor after the end of a transfer that :meth:`advance` has not named.
        name : hashable
            Which no other transfer under way has.
        work_ps : int
            What it takes alone.
        weight : int

        Raises
        ------
        BadValueError
            For a name that is taken, a weight below 1, and weights of more than 12 together.
        """
        self._go_on(now_ps)
        _whole("work_ps", work_ps, 0, MOST_BYTES)
        _whole("weight", weight, 1, MOST_WEIGHT)
        if name in self._under_way:
            raise BadValueError("A transfer of this name is under way.", given=str(name))
        if sum(each.weight for each in self._under_way.values()) + weight > MOST_WEIGHT:
            raise BadValueError("Too much is under way on a link.", given=weight,
                                allowed=f"weights of {MOST_WEIGHT} at one time")  # fmt: skip
        self._under_way[name] = _Transfer(work_ps * _PARTS, weight)

    def next_end_ps(self) -> int | None:
        """Return when the next transfer ends if none begins before, ps; None when nothing is under way."""
        if not self._under_way:
            return None
        weights = sum(each.weight for each in self._under_way.values())
        speed = _PARTS // weights
        return self.now_ps + min(-(-each.left // (each.weight * speed)) for each in self._under_way.values())

    def advance(self, to_ps: int) -> list[Hashable]:
        """Go on to a time and return the transfers that have ended there.

        Parameters
        ----------
        to_ps : int
            Not after :meth:`next_end_ps`.
        """
        self._go_on(to_ps)
        ended = [name for name, each in self._under_way.items() if each.left <= 0]
        for name in ended:
            del self._under_way[name]
        return ended

    def _go_on(self, to_ps: int) -> None:
        end_ps = self.next_end_ps()
        if to_ps < self.now_ps or (end_ps is not None and to_ps > end_ps):
            raise BadValueError("A link goes on from end to end.", given=to_ps, allowed=f"{self.now_ps} to {end_ps}")
        if self._under_way and to_ps > self.now_ps:
            speed = _PARTS // sum(each.weight for each in self._under_way.values())
            for name, each in self._under_way.items():
                # What a rounded end gives too much is no credit for the next transfer.
                left = max(0, each.left - (to_ps - self.now_ps) * each.weight * speed)
                self._under_way[name] = _Transfer(left, each.weight)
        self.now_ps = to_ps


class CopyView(NamedTuple):
    """What is known before a chunk is copied.

    Attributes
    ----------
    pending : int
        Collectives of this device that wait or run and take the link of the copy.
    left_ps : int
        What the rest of the copy takes on a free link, ps.
    due_ps : int
        Time until its bytes are expected to be needed, ps; 0 where somebody waits for them.
    """

    pending: int
    left_ps: int
    due_ps: int

    @property
    def slack_ps(self) -> int:
        """How long the copy may stand still and be in time all the same, ps; negative where it is late."""
        return self.due_ps - self.left_ps


class YieldRule(Protocol):
    """Says whether a copy steps aside before its next chunk."""

    def waits(self, view: CopyView) -> bool:
        """Return whether the chunk has to wait; asked again when a collective ends and when the slack does.

        Parameters
        ----------
        view : CopyView
        """
        ...


class TokenBucket:
    """Says when bytes have passed a link of some rate; the caller has the clock, and sleeps.

    A caller that oversleeps loses nothing if it says since when its next bytes were ready; time in which nobody had
    any is lost.

    Parameters
    ----------
    bytes_per_s : int

    Examples
    --------
    >>> bucket = TokenBucket(bytes_per_s=1_000_000)
    >>> bucket.take(0, 500), bucket.take(0, 500), bucket.take(5_000_000, 1000)
    (500000, 1000000, 6000000)
    """

    def __init__(self, *, bytes_per_s: int) -> None:
        self.rate = LinkRate(bytes_per_s=bytes_per_s)
        self._free_ps = 0

    def take(self, ready_ns: int, n_bytes: int) -> int:
        """Return when these bytes have passed, ns, rounded up; those of later calls come after them.

        Parameters
        ----------
        ready_ns : int
            Since when they wait.
        n_bytes : int
        """
        self._free_ps = max(self._free_ps, ready_ns * _PS_PER_NS) + self.rate.work_ps(n_bytes)
        return -(-self._free_ps // _PS_PER_NS)
