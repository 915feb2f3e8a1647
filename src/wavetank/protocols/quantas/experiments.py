"""QUANTAS's experiment files: read, checked and run, with the figures that QUANTAS writes.

A file names the algorithms' sources (not needed here) and lists experiments: channels (``distribution``), a
``topology`` of ``initialPeers`` peers of one ``initialPeerType``, free ``parameters`` for these, and how many ``tests``
of how many ``rounds`` to run.  What a file leaves out has QUANTAS's default.

Source: J. Oglio, M. Nesterenko, "QUANTAS 2: An Abstract, Concrete and Byzantine Simulator", arXiv 2605.08547, 2026, and
its public code as of 30 September 2025.

Differs from the source:
1. A key or word that QUANTAS would pass over in silence is an error that names the nearest one; the types of delay may
   be written in either case (there, ``poisson`` means ``UNIFORM``).
2. ``identifiers: random`` gives the places of the topology random ids and keeps its links; there, links and ids come
   apart.  Links of a node to itself, in a torus of width 1, do not exist.
3. ``threadCount`` changes nothing: results depend on the seed alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, nearest_of
from wavetank.protocols.quantas.alternating_bit import AlternatingBit
from wavetank.protocols.quantas.chains import Parasites, QuantasChain
from wavetank.protocols.quantas.greetings import Greetings
from wavetank.protocols.quantas.kademlia import QuantasKademlia
from wavetank.protocols.quantas.linear_chord import QuantasChord
from wavetank.protocols.quantas.pbft import QuantasPBFT, splitters
from wavetank.protocols.quantas.raft import QuantasRaft
from wavetank.protocols.quantas.rounds import Pauses, QuantasRounds
from wavetank.protocols.quantas.series import lookups
from wavetank.protocols.quantas.stable_data_link import StableDataLink
from wavetank.sim.faults import Fault
from wavetank.sim.network import Topology
from wavetank.sim.node import Algorithm
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Request, Run

TOPOLOGIES = ("complete", "star", "grid", "torus", "chain", "ring", "unidirectionalRing", "userList")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What one test runs.

    Parameters
    ----------
    algorithm : Algorithm
        With ``series(run, rounds)``, the figures it writes.
    topology : Topology
    faults : tuple of Fault
    pauses : Pauses
    requests : tuple of Request
    """

    algorithm: Any
    topology: Topology
    faults: tuple[Fault, ...] = ()
    pauses: Pauses = field(default_factory=Pauses)
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment of a file.

    Parameters
    ----------
    log_file : str
        Name of the file to which QUANTAS writes its results, ``cout`` for the screen; names the experiment here.
    tests, rounds : int
    rules : QuantasRounds
        Its ``distribution``.
    peer : str
        Its ``initialPeerType``.
    links : tuple of tuple of int, or None
        For each place of the topology the places it has a link to; None for a complete one.
    size : int
        Its ``initialPeers``.
    shuffled : bool
        Whether ids are random.
    parameters : mapping or None
        None when the file gives none.
    where : str
        File and place, for messages.
    """

    log_file: str
    tests: int
    rounds: int
    rules: QuantasRounds
    peer: str
    links: tuple[tuple[int, ...], ...] | None
    size: int
    shuffled: bool
    parameters: Mapping[str, Any] | None
    where: str

    def setup(self, seed: int) -> Setup:
        """Return what the test of that seed runs."""
        order = list(range(self.size))
        if self.shuffled:
            order = Draws(stream_key(seed, "identifiers")).shuffled(order)
        topology = Topology.complete(self.size)
        if self.links is not None:
            mapped: list[tuple[int, ...]] = [()] * self.size
            for place, others in enumerate(self.links):
                mapped[order[place]] = tuple(sorted(order[other] for other in others))
            topology = Topology(self.size, tuple(mapped))
        asked = _Keys(dict(self.parameters or {}), f"{self.where}.parameters")
        given = PEERS[self.peer](asked, self, order, seed)
        asked.no_more()
        return Setup(topology=topology, **given)

    def test(self, seed: int) -> tuple[Run, dict[str, list[Any]]]:
        """Run one test; return the run and the figures QUANTAS writes, by name."""
        setup = self.setup(seed)
        run = self.rules.simulate(
            setup.algorithm,
            rounds=self.rounds,
            topology=setup.topology,
            seed=seed,
            requests=setup.requests,
            faults=setup.faults,
            pauses=setup.pauses,
        )
        return run, dict(setup.algorithm.series(run, self.rounds))

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the results should know: faults beyond what the protocol tolerates."""
        setup = self.setup(0)
        algorithm: Algorithm = setup.algorithm
        tolerated = algorithm.max_faults(self.size)
        found = []
        members = sorted({member for fault in setup.faults for member in fault.members})
        if isinstance(algorithm, QuantasChain) and members:
            odds = [algorithm.odds(index, self.size) for index in range(self.size)]
            if 2 * sum(odds[member] for member in members) > sum(odds):
                found.append(f"{self.log_file}: the parasites own more than half of the mining power.")
        elif len(members) > tolerated:
            found.append(
                f"{self.log_file}: {len(members)} faulty peers of {self.size}; {self.peer} tolerates {tolerated}."
            )
        if len(setup.pauses.stopped) > tolerated:
            found.append(
                f"{self.log_file}: {len(setup.pauses.stopped)} of {self.size} peers are down at first; "
                f"{self.peer} tolerates {tolerated}."
            )
        return tuple(found)


# Reading.


class _Keys:
    """The keys of one JSON object, taken one by one; what is left over is a mistake."""

    def __init__(self, found: Any, where: str) -> None:
        if not isinstance(found, dict):
            raise BadFileError("A JSON object belongs here.", given=found, allowed="{...}", where=where)
        self._found = found
        self._where = where
        self._known: list[str] = []

    def where(self, key: str) -> str:
        """Return the place of a key."""
        return f"{self._where}.{key}"

    def has(self, key: str) -> bool:
        """Return whether a key is given."""
        self._known.append(key)
        return key in self._found

    def any(self, key: str, default: Any = None) -> Any:
        """Return a value of any kind."""
        self._known.append(key)
        return self._found.get(key, default)

    def whole(self, key: str, default: int, *, low: int = -(2**31), high: int = 2**31 - 1) -> int:
        """Return a whole number."""
        value = self.any(key, default)
        right = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not right or not low <= value <= high:
            raise BadFileError("A whole number belongs here.", given=value, allowed=f"{low} to {high}",
                               where=self.where(key))  # fmt: skip
        return int(value)

    def real(self, key: str, default: float, *, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number."""
        value = self.any(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadFileError("A number belongs here.", given=value, allowed=f"{low:g} to {high:g}",
                               where=self.where(key))  # fmt: skip
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.any(key, default)
        if not isinstance(value, bool):
            raise BadFileError("True or false belongs here.", given=value, where=self.where(key))
        return value

    def word(self, key: str, default: str, words: Sequence[str] = ()) -> str:
        """Return a text, one of the words if there are some."""
        value = self.any(key, default)
        if not isinstance(value, str) or (words and value not in words):
            raise BadFileError(
                "There is no such word here." if isinstance(value, str) else "A text belongs here.",
                given=value,
                allowed=words or None,
                nearest=nearest_of(value, words) if isinstance(value, str) else None,
                where=self.where(key),
            )
        return value

    def no_more(self) -> None:
        """Refuse keys that nobody asked for."""
        for key in self._found:
            if key not in self._known:
                raise BadFileError(
                    f"There is no key named {key!r} here.",
                    given=key,
                    allowed=sorted(set(self._known)) or "none",
                    nearest=nearest_of(key, self._known),
                    where=self._where,
                )


def read_experiments(path: Path) -> tuple[Experiment, ...]:
    """Read a QUANTAS experiment file.

    Raises
    ------
    BadFileError
        With line and column where it is no JSON, with the path of the key where it makes no sense.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError("The experiment file cannot be read.", given=str(error), where=str(path)) from error
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFileError(
            "The experiment file is not JSON.",
            given=error.msg,
            where=f"{path}, line {error.lineno}, column {error.colno}",
        ) from error
    except RecursionError as error:
        raise BadFileError("The experiment file is nested too deeply.", where=str(path)) from error
    top = _Keys(found, f"{path}: top")
    sources = top.any("algorithms", [])
    if not isinstance(sources, list) or not all(isinstance(each, str) for each in sources):
        raise BadFileError("A list of source files belongs here.", given=sources, where=f"{path}: algorithms")
    listed = top.any("experiments")
    top.no_more()
    if not isinstance(listed, list) or not listed:
        raise BadFileError("A file lists experiments.", given=listed, where=f"{path}: experiments")
    return tuple(_experiment(each, f"{path}: experiments[{place}]") for place, each in enumerate(listed))


def _experiment(found: Any, where: str) -> Experiment:
    keys = _Keys(found, where)
    topology = _Keys(keys.any("topology", {}), f"{where}.topology")
    size = topology.whole("initialPeers", 0, low=1, high=1_000_000)
    peer = topology.word("initialPeerType", "", tuple(PEERS))
    shuffled = topology.word("identifiers", "", ("", "random")) == "random"
    links = _links(topology, size)
    topology.no_more()
    parameters = keys.any("parameters")
    keys.word("algorithm", "")
    keys.whole("threadCount", 1)
    experiment = Experiment(
        log_file=keys.word("logFile", "cout"),
        tests=keys.whole("tests", 1, low=1, high=1_000_000),
        rounds=keys.whole("rounds", 0, low=1, high=100_000_000),
        rules=_rules(_Keys(keys.any("distribution", {}), f"{where}.distribution")),
        peer=peer,
        links=links,
        size=size,
        shuffled=shuffled,
        parameters=parameters if parameters is None else _Keys(parameters, f"{where}.parameters")._found,
        where=where,
    )
    keys.no_more()
    # A mistake in the parameters is found before anything runs.
    experiment.setup(0)
    return experiment


def _rules(keys: _Keys) -> QuantasRounds:
    kind = keys.word("type", "UNIFORM")
    if kind.upper() not in ("UNIFORM", "POISSON", "ONE"):
        allowed = ("UNIFORM", "POISSON", "ONE")
        raise BadFileError("There is no such distribution of delays.", given=kind, allowed=allowed,
                           nearest=nearest_of(kind.upper(), allowed), where=keys.where("type"))  # fmt: skip
    least = keys.whole("minDelay", 1, low=0)
    most = keys.whole("maxDelay", 1, low=least)
    one = kind.upper() == "ONE"
    found = QuantasRounds(
        delay="constant" if one else kind.lower(),
        least_delay=1 if one else least,
        most_delay=1 if one else most,
        mean_delay=keys.whole("avgDelay", 1, low=1),
        drop=keys.real("dropProbability", 0.0),
        duplicate=keys.real("duplicateProbability", 0.0),
        reorder=keys.real("reorderProbability", 0.0),
        budget=keys.whole("maxMsgsRec", 1, low=1),
        queue=keys.whole("size", 0, low=1) if keys.has("size") else None,
    )
    keys.no_more()
    return found


def _links(keys: _Keys, size: int) -> tuple[tuple[int, ...], ...] | None:
    kind = keys.word("type", "", TOPOLOGIES)
    height, width = keys.whole("height", 1, low=1), keys.whole("width", 1, low=1)
    listed = keys.any("list", {})
    if kind == "complete":
        return None
    pairs: set[tuple[int, int]] = set()
    if kind == "star":
        pairs = {(0, other) for other in range(1, size)}
    elif kind in ("grid", "torus"):
        if height * width > size:
            raise BadFileError("The lattice has more places than there are peers.", given=f"{height} x {width}",
                               allowed=f"at most {size} places", where=keys.where("height"))  # fmt: skip
        wrap = kind == "torus"
        for row in range(height):
            for column in range(width):
                here = row * width + column
                if column + 1 < width or wrap:
                    pairs.add((here, row * width + (column + 1) % width))
                if row + 1 < height or wrap:
                    pairs.add((here, (row + 1) % height * width + column))
    elif kind == "userList":
        pairs = _listed(listed, size, keys.where("list"))
    else:
        pairs = {(place, place + 1) for place in range(size - 1)}
        if kind != "chain" and size > 1:
            pairs.add((size - 1, 0))
    if kind not in ("userList", "unidirectionalRing"):
        pairs |= {(other, place) for place, other in pairs}
    found: list[list[int]] = [[] for _ in range(size)]
    for place, other in sorted(pairs):
        if place != other:
            found[place].append(other)
    return tuple(map(tuple, found))


def _listed(listed: Any, size: int, where: str) -> set[tuple[int, int]]:
    pairs = set()
    for key, others in _Keys(listed, where)._found.items():
        if not key.isdecimal() or int(key) >= size:
            raise BadFileError("A list of links begins with a peer.", given=key, allowed=f'"0" to "{size - 1}"',
                               where=where)  # fmt: skip
        if not isinstance(others, list) or not all(type(other) is int and 0 <= other < size for other in others):
            raise BadFileError("A list of peers belongs here.", given=others, allowed=f"0 to {size - 1}",
                               where=f"{where}.{key}")  # fmt: skip
        pairs |= {(int(key), other) for other in others}
    return pairs


# The peers: what QUANTAS's parameters mean to each.

_Given = dict[str, Any]


def _alternating_bit(keys: _Keys, experiment: Experiment, order: Sequence[int], seed: int) -> _Given:
    return {"algorithm": AlternatingBit(timeout=keys.whole("timeOutRate", experiment.rounds, low=1))}


def _stable_data_link(keys: _Keys, experiment: Experiment, order: Sequence[int], seed: int) -> _Given:
    return {"algorithm": StableDataLink()}


def _kademlia(keys: _Keys, experiment: Experiment, order: Sequence[int], seed: int) -> _Given:
    return {"algorithm": QuantasKademlia(), "requests": _lookups(experiment, seed, elsewhere=False)}


def _linear_chord(keys: _Keys, experiment: Experiment, order: Sequence[int], seed: int) -> _Given:
    return {"algorithm": QuantasChord(), "requests": _lookups(experiment, seed, elsewhere=True)}


def _lookups(experiment: Experiment, seed: int, *, elsewhere: bool) -> tuple[Request, ...]:
    drawn = lookups(experiment.size, experiment.rounds, seed, elsewhere=elsewhere)
    return tuple(Request(at=number, node=origin, command=target) for number, (origin, target) in enumerate(drawn, 1))


def _pbft(keys: _Keys, experiment: Experiment, order: Sequence[int], seed: int) -> _Given:
    count = keys.whole("byzantine_count", 0, low=0, high=experiment.size)
    faults = (splitters(order[:count], order),) if count else ()
    return {"algorithm": QuantasPBFT(), "faults": faults}


def _raft(keys: _Keys, experiment: Experiment, order: Sequence[int], seed: int) -> _Given:
    keys.whole("committee_id", 0)
    # The peers that are down at first are those of the lowest ids.
    stopped = tuple(range(min(keys.whole("crash_count", 0, low=0), experiment.size)))
    until = keys.whole("crash_recovery_round", 0, low=0) if keys.has("crash_recovery_round") else math.inf
    return {
        "algorithm": QuantasRaft(
            submit_rate=max(keys.whole("submit_rate", 20), 0),
            timeout=keys.whole("timeout_spacing", 100, low=1),
            jitter=max(keys.whole("timeout_jitter", 5), 0),
        ),
        "pauses": Pauses(
            odds=keys.real("crash_odds", 0.0),
            rounds=keys.whole("crash_recovery_delay", 0, low=0),
            stopped=stopped if until > 0 else (),
            until=until,
        ),
    }


def _chain(rule: str, keys: _Keys, experiment: Experiment, order: Sequence[int], seed: int) -> _Given:
    # The shipped inputs give a default rate that QUANTAS does not read.
    keys.any("defaultMineRate")
    size = experiment.size
    rate = keys.whole("mineRate", 1)
    listed = keys.any("mineRates", [])
    if not isinstance(listed, list):
        raise BadFileError("A list of rates belongs here.", given=listed, where=keys.where("mineRates"))
    by_place = [each if type(each) is int else rate for each in listed[:size]]
    by_place += [rate] * (size - len(by_place))
    rates = [rate] * size
    for place, each in zip(order, by_place, strict=True):
        rates[place] = each
    algorithm = QuantasChain(
        rule=rule,
        submit_rate=max(keys.whole("submitRate", 20), 0),
        rates=tuple(rates),
        rate=rate,
        scaler=max(keys.whole("mineScaler", 1), 1),
        first=order[0],
        active=experiment.parameters is not None or rule != "longest",
    )
    faults: tuple[Fault, ...] = ()
    if keys.has("parasiteFault"):
        parasite = _Keys(keys.any("parasiteFault"), keys.where("parasiteFault"))
        lead = max(parasite.whole("leadThreshold", 1), 1)
        places = parasite.any("peerIndices", list(range(min(parasite.whole("count", 0, low=0), size))))
        if not isinstance(places, list) or not all(type(place) is int for place in places):
            raise BadFileError("A list of peers belongs here.", given=places, where=parasite.where("peerIndices"))
        parasite.no_more()
        members = tuple(sorted({order[max(place, 0)] for place in places if place < size}))
        faults = (Parasites(members=members, lead=lead),) if members else ()
    return {"algorithm": algorithm, "faults": faults}


def _greetings(second: bool, keys: _Keys, experiment: Experiment, order: Sequence[int], seed: int) -> _Given:
    # The shipped inputs give parameters that QUANTAS does not read.
    for name in ("parameter1", "parameter2", "parameter3", "changePeerType"):
        keys.any(name)
    return {"algorithm": Greetings(second=second)}


_SHIPPED: Mapping[str, Callable[[_Keys, Experiment, Sequence[int], int], _Given]] = {
    "AltBitPeer": _alternating_bit,
    "StableDataLinkPeer": _stable_data_link,
    "KademliaPeer": _kademlia,
    "LinearChordPeer": _linear_chord,
    "PBFTPeer": _pbft,
    "RaftPeer": _raft,
    "BitcoinPeer": partial(_chain, "longest"),
    "EthereumPeer": partial(_chain, "heaviest"),
    "ExamplePeer": partial(_greetings, False),
    "ExamplePeer2": partial(_greetings, True),
}

# The second name of a peer chooses the sockets there; here the life is chosen elsewhere.
PEERS = {**_SHIPPED, **{f"{name}Concrete": read for name, read in _SHIPPED.items()}}
