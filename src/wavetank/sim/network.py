"""What lies between the nodes: who has a link to whom, and what a link does to a message.

Plain data, read by the simulation, by the sockets (which delay and drop on purpose) and by the explorer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from wavetank.errors import BadFileError, BadValueError
from wavetank.settings import check_parameters, setting
from wavetank.sim.rng import Draws, stream_key

# A slip in an edge list must not fill the memory.
MOST_NODES = 10_000_000
DELAYS = ("constant", "uniform", "uniform-real", "poisson", "exponential", "pareto")
TOPOLOGIES = ("complete", "star", "grid", "torus", "chain", "ring", "directed-ring", "random")


@dataclass(frozen=True)
class AllBut(Sequence[int]):
    """The numbers from 0 to ``size - 1`` without ``left_out``, in constant memory."""

    size: int
    left_out: int

    def __len__(self) -> int:
        return self.size - 1

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return list(self)[place]
        if place < 0:
            place += self.size - 1
        if not 0 <= place < self.size - 1:
            raise IndexError(place)
        return place + (place >= self.left_out)

    def __iter__(self) -> Iterator[int]:
        yield from range(self.left_out)
        yield from range(self.left_out + 1, self.size)

    def __contains__(self, item: object) -> bool:
        return isinstance(item, int) and 0 <= item < self.size and item != self.left_out


@dataclass(frozen=True)
class Topology:
    """Who may send to whom.

    Parameters
    ----------
    size : int
        How many nodes there are.
    links : tuple of tuple of int, or None
        For each node the nodes it may send to, in rising order; None when everyone may send to everyone else.
    """

    size: int
    links: tuple[tuple[int, ...], ...] | None = None

    def peers(self, node: int) -> Sequence[int]:
        """Return the nodes that ``node`` may send to."""
        return AllBut(self.size, node) if self.links is None else self.links[node]

    def sources(self, node: int) -> Sequence[int]:
        """Return the nodes that may send to ``node``."""
        if self.links is None:
            return AllBut(self.size, node)
        return tuple(other for other, peers in enumerate(self.links) if node in peers)

    @classmethod
    def complete(cls, size: int) -> Topology:
        """Everyone to everyone."""
        return cls(_size(size))

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[int, int]], *, size: int = 0, directed: bool = True) -> Topology:
        """Return the topology of the given links; ``size`` 0 takes the largest number that occurs, plus one.

        Raises
        ------
        BadValueError
            For a link from a node to itself or beyond ``size``.
        """
        pairs = set(edges)
        if not directed:
            pairs |= {(to, origin) for origin, to in pairs}
        size = size or 1 + max((max(pair) for pair in pairs), default=0)
        lists: list[list[int]] = [[] for _ in range(_size(size))]
        for origin, to in sorted(pairs):
            if origin == to or not 0 <= origin < size or not 0 <= to < size:
                raise BadValueError(
                    "A link must join two different nodes.", given=(origin, to), allowed=f"nodes 0 to {size - 1}"
                )
            lists[origin].append(to)
        return cls(size, tuple(map(tuple, lists)))

    @classmethod
    def from_file(cls, path: Path, *, directed: bool = True) -> Topology:
        """Read an edge list: two node numbers a line, ``#`` begins a comment.

        Raises
        ------
        BadFileError
            With the line that is no link.
        """
        edges: list[tuple[int, int]] = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadFileError("The edge list cannot be read.", given=str(error), where=str(path)) from error
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].replace(",", " ").split()
            if not words:
                continue
            if len(words) != 2 or not all(word.isdecimal() for word in words) or words[0] == words[1]:
                raise BadFileError(
                    "A line of an edge list holds two different node numbers.",
                    given=line.strip(),
                    where=f"{path}, line {number}",
                )
            if max(map(len, words)) > 18 or max(map(int, words)) >= MOST_NODES:
                raise BadFileError(
                    "A node number is too large.",
                    given=line.strip(),
                    allowed=f"0 to {MOST_NODES - 1}",
                    where=f"{path}, line {number}",
                )
            edges.append((int(words[0]), int(words[1])))
        if not edges:
            raise BadFileError("The edge list is empty.", where=str(path))
        return cls.from_edges(edges, directed=directed)

    @classmethod
    def named(
        cls, kind: str, size: int, *, width: int = 0, probability: float = 0.5, directed: bool = False, seed: int = 0
    ) -> Topology:
        """Return one of :data:`TOPOLOGIES`.

        Parameters
        ----------
        kind : str
        size : int
            Nodes.
        width : int
            Nodes in a row of a grid or torus; 0 for the divisor of ``size`` closest to its root.
        probability : float
            Of each link, in a random topology.
        directed : bool
            Whether the two directions of a random link are drawn on their own.
        seed : int
            Of a random topology.

        Raises
        ------
        BadValueError
        """
        if kind not in TOPOLOGIES:
            raise BadValueError("There is no such topology.", given=kind, allowed=TOPOLOGIES)
        _size(size)
        if kind == "complete":
            return cls.complete(size)
        if kind == "star":
            edges = {(0, other) for other in range(1, size)}
        elif kind == "chain":
            edges = {(node, node + 1) for node in range(size - 1)}
        elif kind in ("ring", "directed-ring"):
            edges = {(node, (node + 1) % size) for node in range(size) if size > 1}
            directed = kind == "directed-ring"
        elif kind == "random":
            draws = Draws(stream_key(seed, "topology"))
            edges = {
                (origin, to)
                for origin in range(size)
                for to in range(0 if directed else origin + 1, size)
                if to != origin and draws.chance(probability)
            }
        else:
            edges = set(_lattice(size, width or _best_width(size), wrap=kind == "torus"))
        return cls.from_edges(edges, size=size, directed=directed and kind in ("random", "directed-ring"))


def _size(size: int) -> int:
    if size < 1:
        raise BadValueError("A topology has at least one node.", given=size)
    return size


def _best_width(size: int) -> int:
    return next(size // low for low in range(math.isqrt(size), 0, -1) if size % low == 0)


def _lattice(size: int, width: int, *, wrap: bool) -> Iterator[tuple[int, int]]:
    if size % width:
        raise BadValueError("The rows of a grid have equal lengths.", given=width, allowed=f"a divisor of {size}")
    height = size // width
    for node in range(size):
        row, column = divmod(node, width)
        for next_row, next_column in ((row, column + 1), (row + 1, column)):
            if wrap:
                next_row, next_column = next_row % height, next_column % width
            other = next_row * width + next_column
            if next_row < height and next_column < width and other != node:
                yield (node, other)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A time during which only nodes of the same group reach each other.

    Parameters
    ----------
    start, stop : float
        Rounds; messages *sent* from ``start`` up to, not including, ``stop`` across groups are lost.
    groups : tuple of tuple of int
        A node in no group reaches nobody.
    """

    start: float
    stop: float
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.start <= self.stop:
            raise BadValueError("A partition stops after it starts.", given=(self.start, self.stop))

    def cuts(self, sender: int, to: int, now: float) -> bool:
        """Return whether a message sent now is lost."""
        if not self.start <= now < self.stop:
            return False
        return not any(sender in group and to in group for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class Links:
    """What a link does to messages; every directed pair of neighbours has a link of its own.

    Messages of one link arrive in the order in which they were sent, unless ``reorder`` says otherwise: a slow one
    holds up those behind it.

    Parameters
    ----------
    delay : str
        ``constant`` (``least_delay``), ``uniform`` (whole numbers from ``least_delay`` to ``most_delay``),
        ``uniform-real``, ``poisson`` (mean ``mean_delay``, cut to the interval), ``exponential`` (``least_delay`` plus
        an exponential of mean ``mean_delay``), ``pareto`` (``least_delay`` times a Pareto variate of shape 1.5).  In
        rounds, delays are rounded up.
    least_delay, most_delay, mean_delay : float
        Rounds.
    drop, duplicate, reorder : float
        Probability that a message is lost; that one more copy is sent (tried again after each copy); as events, that a
        message is held back by one more delay, outside the order of its link; in rounds, that a link with several
        messages shuffles them before a round.
    budget : int or None
        Messages a link delivers in one round, in rounds only; the others wait.  A link that also delays, loses or
        copies messages takes only as many as it can deliver in the whole run.
    queue : int or None
        Messages a link holds; what comes on top is lost.
    regions : tuple of int
        Region of each node, for ``between``; empty for none.
    between : tuple of tuple of float
        Extra delay in rounds from region to region.
    partitions : tuple of Partition
        Times during which groups of nodes are cut off from each other.
    """

    delay: str = setting("constant", choices=DELAYS, says="Distribution of the delay")
    least_delay: float = setting(1.0, unit="rounds", low=0.0, says="Least delay")
    most_delay: float = setting(1.0, unit="rounds", low=0.0, says="Greatest delay, of uniform and of poisson")
    mean_delay: float = setting(1.0, unit="rounds", low=0.0, says="Mean delay, of poisson and of exponential")
    drop: float = setting(0.0, low=0.0, high=1.0, says="Probability that a message is lost")
    duplicate: float = setting(0.0, low=0.0, high=0.99, says="Probability that a message gets one more copy")
    reorder: float = setting(0.0, low=0.0, high=1.0, says="Probability that a message leaves its order")
    budget: int | None = setting(None, low=1, says="Most messages that a link delivers per round")
    queue: int | None = setting(None, low=1, says="Most messages that a link holds")
    regions: tuple[int, ...] = ()
    between: tuple[tuple[float, ...], ...] = ()
    partitions: tuple[Partition, ...] = ()

    def __post_init__(self) -> None:
        named = ("delay", "least_delay", "most_delay", "mean_delay", "drop", "duplicate", "reorder", "budget", "queue")
        check_parameters(type(self), {name: getattr(self, name) for name in named}, where="links")
        if self.delay in ("uniform", "uniform-real", "poisson") and self.most_delay < self.least_delay:
            raise BadValueError(
                "The greatest delay is below the least delay.",
                given=self.most_delay,
                allowed=f"at least {self.least_delay}",
            )
        if any(not delay >= 0 for row in self.between for delay in row):
            raise BadValueError("A delay is not negative.", given=self.between, where="between")
        if self.regions and (
            min(self.regions) < 0
            or len(self.between) <= max(self.regions)
            or any(len(row) != len(self.between) for row in self.between)
        ):
            raise BadValueError("`between` needs a row and a column for every region.", given=self.between)

    @property
    def plain(self) -> bool:
        """Whether every message arrives one round later, all of them, in order (budgets aside)."""
        constant = self.delay == "constant" or (self.delay == "uniform" and self.least_delay == self.most_delay)
        return (
            constant
            and self.least_delay == 1.0
            and self.drop == self.duplicate == self.reorder == 0.0
            and self.queue is None
            and not self.regions
            and not self.partitions
        )

    def sampled_delay(self, uniform: float) -> float:
        """Return the delay in rounds that belongs to a draw from [0, 1), regions aside."""
        if self.delay == "constant":
            return self.least_delay
        if self.delay == "uniform":
            low, high = math.ceil(self.least_delay), math.floor(self.most_delay)
            return float(low + int(uniform * (high - low + 1)))
        if self.delay == "uniform-real":
            return self.least_delay + uniform * (self.most_delay - self.least_delay)
        if self.delay == "exponential":
            return self.least_delay - self.mean_delay * math.log1p(-uniform)
        if self.delay == "pareto":
            return float(self.least_delay * (1.0 - uniform) ** (-1 / 1.5))
        return min(max(_poisson(self.mean_delay, uniform), self.least_delay), self.most_delay)

    def extra_delay(self, sender: int, to: int) -> float:
        """Return what the regions of the two ends add to the delay, in rounds."""
        if not self.regions:
            return 0.0
        return self.between[self.regions[sender]][self.regions[to]]

    def cut(self, sender: int, to: int, now: float) -> bool:
        """Return whether a partition swallows a message sent now."""
        return any(partition.cuts(sender, to, now) for partition in self.partitions)


def _poisson(mean: float, uniform: float) -> float:
    """Invert the Poisson distribution function by summing it up; means here are a few rounds."""
    term = total = math.exp(-mean)
    count = 0
    while total < uniform and count < 1000:
        count += 1
        term *= mean / count
        total += term
    return float(count)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Topology and links together.

    Parameters
    ----------
    topology : Topology
    links : Links
        Of every pair of neighbours.
    """

    topology: Topology
    links: Links = field(default_factory=Links)

    def __post_init__(self) -> None:
        regions = len(self.links.regions)
        if regions and regions != self.topology.size:
            raise BadValueError("Every node has a region.", given=regions, allowed=f"{self.topology.size} regions")

    @classmethod
    def complete(cls, size: int, **links: object) -> Network:
        """Return a complete network; keywords are those of :class:`Links`."""
        return cls(topology=Topology.complete(size), links=Links(**links))  # type: ignore[arg-type]
