"""Two exact simulators of population protocols without ranks: agent by agent, and many meetings at a draw.

The sequential one keeps one byte per agent and draws pairs of agents in blocks, so that hashing is vectorised and cache
misses overlap.  The batched one keeps only how many agents are in each state: until an agent meets for the second time
(about 0.63 sqrt(n) meetings), who met whom is a few hypergeometric draws.  Both sample the same process exactly: every
meeting is an ordered pair of different agents, uniform and independent of the past.

Skipping meetings that change nothing follows D. Gillespie, J. Phys. Chem. 81(25), 1977.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.protocols.populations.interface import PopulationProtocol, PopulationRun, consensus
from wavetank.protocols.populations.sampling import GOLDEN, below, failures_before_success, hypergeometric, uniform
from wavetank.sim.compiled import compiled
from wavetank.sim.rng import stream_key
from wavetank.sim.streams import mix

_BLOCK = 512
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MOST_SEQUENTIAL = 1 << 31
# Beyond, float64 logarithms of factorials are no longer exact to 1e-4.
_MOST_BATCHED = 1 << 32


def check_population(protocol: PopulationProtocol, counts: NDArray[np.int64], most: int, interactions: int) -> int:
    """Return the number of agents.

    Raises
    ------
    BadValueError
        For a protocol that looks at ranks, counts of another shape, fewer than two or too many agents, or a negative
        number of interactions.
    """
    if protocol.ordered:
        raise BadValueError(
            "This simulator knows no ranks.",
            given=f"{protocol.name}, which uses {', '.join(protocol.predicates)}",
            hint="Use OrderedSequential or OrderedSkipping.",
        )
    if counts.shape != (len(protocol),) or (counts < 0).any():
        raise BadValueError(
            "Counts must be one whole number per state, none negative.",
            given=f"shape {counts.shape}",
            allowed=f"shape ({len(protocol)},)",
            where=protocol.name,
        )
    n = int(counts.sum())
    if not 2 <= n <= most:
        raise BadValueError("The number of agents is out of range.", given=n, allowed=f"2 to {most}")
    if interactions < 0:
        raise BadValueError("The number of interactions is negative.", given=interactions, allowed="0 or more")
    return n


def rules_of(protocol: PopulationProtocol) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the rules of a protocol that does not look at ranks: both states to both new states."""
    return {
        (int(p), int(q)): (int(protocol.new_initiator[0, p, q]), int(protocol.new_responder[0, p, q]))
        for p, q in np.argwhere(protocol.enabled[0])
    }


def ended(protocol: PopulationProtocol, counts: NDArray[np.int64], done: int, last: int) -> PopulationRun:
    """Return a run of ``done`` meetings that ended with ``counts`` (states,); the last change came with ``last``."""
    silent = bool(is_silent(protocol.enabled[0], counts))
    return PopulationRun(done, last, -1, silent, counts, consensus(protocol.outputs, counts))


@dataclass(frozen=True, kw_only=True)
class PopulationSequential:
    """Simulates meeting after meeting on an array of agents.

    At most 2**31 agents of at most 256 states (one byte each; two bytes for more states).
    """

    def run(
        self, protocol: PopulationProtocol, counts: NDArray[np.int64], *, interactions: int, seed: int
    ) -> PopulationRun:
        """Simulate until nothing can change or ``interactions`` meetings are over.

        Silence is looked for after every n meetings; ``last_change`` is exact.

        Parameters
        ----------
        protocol : PopulationProtocol
        counts : int64 array (states,)
            Agents that start in each state.
        interactions : int
            The most meetings.
        seed : int

        Raises
        ------
        BadValueError
            For a protocol that looks at ranks, or a population that is too small or too large.
        """
        n = check_population(protocol, counts, _MOST_SEQUENTIAL, interactions)
        size = len(protocol)
        narrow = size <= 256
        agents = np.repeat(np.arange(size, dtype=np.uint8 if narrow else np.uint16), counts)
        shift = 8 if narrow else 16
        table = (protocol.new_initiator[0].astype(np.uint32) << shift) | protocol.new_responder[0].astype(np.uint32)
        packed = np.ascontiguousarray(table.reshape(-1).astype(np.uint16 if narrow else np.uint32))
        key = np.uint64(stream_key(seed, "population", "sequential"))
        done, last, counter = 0, 0, np.zeros(1, np.uint64)
        counts = counts.astype(np.int64)
        while done < interactions and not is_silent(protocol.enabled[0], counts):
            steps = min(max(n, 1 << 14), interactions - done)
            changed = _meet(agents, packed, size, shift, key, counter, steps)
            last = done + changed if changed else last
            done += steps
            counts = _census(agents, size)
        return ended(protocol, counts, done, last)


@dataclass(frozen=True, kw_only=True)
class PopulationBatched:
    """Simulates batches of meetings on the number of agents in each state; at most 2**32 agents."""

    def run(
        self, protocol: PopulationProtocol, counts: NDArray[np.int64], *, interactions: int, seed: int
    ) -> PopulationRun:
        """Simulate until nothing can change or ``interactions`` meetings are over.

        Parameters and errors are those of :meth:`PopulationSequential.run`.  ``last_change`` is exact when the last
        change came while jumping (always near silence); within a batch it is the batch's end.
        """
        n = check_population(protocol, counts, _MOST_BATCHED, interactions)
        counts = counts.astype(np.int64)
        key = np.uint64(stream_key(seed, "population", "batched"))
        done, last = _batches(
            counts,
            protocol.new_initiator[0].astype(np.int64),
            protocol.new_responder[0].astype(np.int64),
            protocol.enabled[0],
            collision_free(n),
            key,
            np.zeros(1, np.uint64),
            interactions,
        )
        return ended(protocol, counts, done, last)


@dataclass(frozen=True, kw_only=True)
class PopulationPython:
    """The definition in plain Python: a list of agents, a dictionary of rules, one random pair after another."""

    def run(
        self, protocol: PopulationProtocol, counts: NDArray[np.int64], *, interactions: int, seed: int
    ) -> PopulationRun:
        """Simulate as :meth:`PopulationSequential.run` does, slowly; it does not look for silence before the end."""
        from wavetank.sim.rng import stream

        n = check_population(protocol, counts, _MOST_SEQUENTIAL, interactions)
        rng = stream(seed, "population", "python")
        agents: list[int] = np.repeat(np.arange(len(protocol)), counts).tolist()
        rules = rules_of(protocol)
        last = done = 0
        while done < interactions:
            steps = min(1 << 14, interactions - done)
            firsts, seconds = rng.integers(0, n, steps).tolist(), rng.integers(0, n - 1, steps).tolist()
            for number, (i, j) in enumerate(zip(firsts, seconds, strict=True), done + 1):
                if j >= i:
                    j += 1
                new = rules.get((agents[i], agents[j]))
                if new is not None:
                    agents[i], agents[j] = new
                    last = number
            done += steps
        return ended(protocol, np.bincount(np.array(agents), minlength=len(protocol)).astype(np.int64), done, last)


@compiled
def is_silent(enabled: NDArray[np.bool_], counts: NDArray[np.int64]) -> bool:
    """Return whether no two agents can change each other.

    Parameters
    ----------
    enabled : bool array (states, states)
    counts : int64 array (states,)
    """
    for p in range(counts.size):
        if counts[p] == 0:
            continue
        for q in range(counts.size):
            if enabled[p, q] and counts[q] > (1 if p == q else 0):
                return False
    return True


def collision_free(n: int) -> NDArray[np.float64]:
    """Return ln P(the first k meetings touch 2k different agents), k = 0, 1, ..., float64 array.

    It ends where the probability is below 2**-60, or where the population is used up.

    Parameters
    ----------
    n : int
        Agents.
    """
    longest = min(n // 2, int(7.0 * n**0.5) + 8)
    touched = 2.0 * np.arange(longest)
    steps = np.log1p(-touched / n) + np.log1p(-touched / (n - 1.0))
    return np.concatenate([[0.0], np.cumsum(steps)])


@compiled
def _meet(
    agents: NDArray[Any], table: NDArray[Any], size: int, shift: int, key: int, counter: NDArray[np.uint64], steps: int
) -> int:
    """Let ``steps`` ordered pairs meet; return the number of the last meeting that changed a state, 0 for none."""
    n, others = np.uint64(agents.size), np.uint64(agents.size - 1)
    # Lemire's rejection: a draw whose low half falls below the threshold is one of the few that would be a bias.
    first_threshold = (np.uint64(1) << _HALF) % n
    second_threshold = (np.uint64(1) << _HALF) % others
    firsts = np.empty(_BLOCK, np.uint32)
    seconds = np.empty(_BLOCK, np.uint32)
    wide, mask = np.uint64(size), (1 << shift) - 1
    done = last = 0
    while done < steps:
        rejected, start = False, counter[0]
        for k in range(_BLOCK):
            bits = mix(key + (start + np.uint64(k)) * GOLDEN)
            x, y = (bits & _LOW) * n, (bits >> _HALF) * others
            i, j = x >> _HALF, y >> _HALF
            firsts[k] = i
            seconds[k] = j + np.uint64(j >= i)
            rejected |= ((x & _LOW) < first_threshold) | ((y & _LOW) < second_threshold)
        drawn = _BLOCK
        if rejected:
            drawn = 0
            for k in range(_BLOCK):
                bits = mix(key + (start + np.uint64(k)) * GOLDEN)
                x, y = (bits & _LOW) * n, (bits >> _HALF) * others
                if (x & _LOW) >= first_threshold and (y & _LOW) >= second_threshold:
                    firsts[drawn], seconds[drawn] = firsts[k], seconds[k]
                    drawn += 1
        counter[0] = start + np.uint64(_BLOCK)
        drawn = min(drawn, steps - done)
        for k in range(drawn):
            i, j = firsts[k], seconds[k]
            p, q = agents[i], agents[j]
            new = table[np.uint64(p) * wide + np.uint64(q)]
            agents[i] = new >> shift
            agents[j] = new & mask
            if new != (np.uint64(p) << np.uint64(shift)) | np.uint64(q):
                last = done + k + 1
        done += drawn
    return last


@compiled
def _census(agents: NDArray[Any], size: int) -> NDArray[np.int64]:
    """Count the agents in each state; four tables, so that equal neighbours do not wait for each other."""
    tables = np.zeros((4, size), np.int64)
    whole = agents.size - agents.size % 4
    for k in range(0, whole, 4):
        tables[0, agents[k]] += 1
        tables[1, agents[k + 1]] += 1
        tables[2, agents[k + 2]] += 1
        tables[3, agents[k + 3]] += 1
    for k in range(whole, agents.size):
        tables[0, agents[k]] += 1
    return tables.sum(axis=0)


@compiled
def _batches(
    counts: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64], enabled: NDArray[np.bool_],
    log_survival: NDArray[np.float64], key: int, counter: NDArray[np.uint64], interactions: int,
) -> tuple[int, int]:  # fmt: skip
    """Advance the counts; return meetings done, and the last one that changed something."""
    size = counts.size
    n = counts.sum()
    pairs = np.float64(n) * (n - 1)
    initiators, responders, after = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    done = last = 0
    expected = 0.63 * np.sqrt(np.float64(n))
    draws = size * (size + 2.0)
    while done < interactions:
        active = _active_pairs(counts, enabled)
        if active == 0.0:
            return done, last
        chance = active / pairs
        if chance * expected < draws or log_survival.size < 8:
            # Few meetings change anything (or the population is tiny): go to the next one that does.
            skipped = failures_before_success(key, counter, chance)
            if skipped >= interactions - done:
                return interactions, last
            done += int(skipped) + 1
            _one_change(counts, first, second, enabled, active, key, counter)
            last = done
            continue
        # The longest run of meetings between agents that have not met before in this batch, by inversion.
        level = np.log(uniform(key, counter))
        low, high = 0, log_survival.size - 1
        while low < high:
            middle = (low + high + 1) // 2
            if log_survival[middle] > level:
                low = middle
            else:
                high = middle - 1
        fresh = min(low, interactions - done)
        collides = fresh == low and done + fresh < interactions
        changed = _fresh_meetings(counts, first, second, enabled, initiators, responders, after, fresh, key, counter)
        if collides:
            changed |= _collision(counts, after, first, second, enabled, 2 * fresh, key, counter)
        done += fresh + (1 if collides else 0)
        for state in range(size):
            counts[state] += after[state]
        if changed:
            last = done
    return done, last


@compiled
def _active_pairs(counts: NDArray[np.int64], enabled: NDArray[np.bool_]) -> float:
    active = 0.0
    for p in range(counts.size):
        if counts[p] == 0:
            continue
        for q in range(counts.size):
            if enabled[p, q]:
                active += np.float64(counts[p]) * (counts[q] - (1 if p == q else 0))
    return active


@compiled
def _one_change(
    counts: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64], enabled: NDArray[np.bool_],
    active: float, key: int, counter: NDArray[np.uint64],
) -> None:  # fmt: skip
    left = uniform(key, counter) * active
    chosen_p = chosen_q = -1
    for p in range(counts.size):
        if counts[p] == 0 or left < 0.0:
            continue
        for q in range(counts.size):
            if not enabled[p, q] or counts[q] <= (1 if p == q else 0):
                continue
            # The last candidate stays chosen when rounding leaves a sliver.
            chosen_p, chosen_q = p, q
            left -= np.float64(counts[p]) * (counts[q] - (1 if p == q else 0))
            if left < 0.0:
                break
    counts[chosen_p] -= 1
    counts[chosen_q] -= 1
    counts[first[chosen_p, chosen_q]] += 1
    counts[second[chosen_p, chosen_q]] += 1


@compiled
def _fresh_meetings(
    counts: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64], enabled: NDArray[np.bool_],
    initiators: NDArray[np.int64], responders: NDArray[np.int64], after: NDArray[np.int64],
    meetings: int, key: int, counter: NDArray[np.uint64],
) -> bool:  # fmt: skip
    """Take ``2 * meetings`` agents out of ``counts``, pair them and put what becomes of them into ``after``."""
    size = counts.size
    after[:] = 0
    for drawn in (initiators, responders):
        rest, left = counts.sum(), meetings
        for state in range(size):
            rest -= counts[state]
            drawn[state] = hypergeometric(key, counter, counts[state], rest, left) if left else 0
            left -= drawn[state]
        for state in range(size):
            counts[state] -= drawn[state]
    changed = False
    for p in range(size):
        left = initiators[p]
        if left == 0:
            continue
        rest = responders.sum()
        for q in range(size):
            if left == 0:
                break
            rest -= responders[q]
            met = hypergeometric(key, counter, responders[q], rest, left)
            if met:
                responders[q] -= met
                left -= met
                after[first[p, q]] += met
                after[second[p, q]] += met
                changed |= enabled[p, q]
    return changed


@compiled
def _collision(
    counts: NDArray[np.int64], after: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64],
    enabled: NDArray[np.bool_], touched: int, key: int, counter: NDArray[np.uint64],
) -> bool:  # fmt: skip
    """Let one meeting happen that involves at least one agent of this batch."""
    untouched = counts.sum()
    # Initiator and responder touched, initiator alone, responder alone; each has a factor ``touched`` more ways.
    both = touched - 1
    ticket = below(key, counter, both + 2 * untouched)
    p = _take(after if ticket < both + untouched else counts, key, counter)
    q = _take(counts if both <= ticket < both + untouched else after, key, counter)
    after[first[p, q]] += 1
    after[second[p, q]] += 1
    return enabled[p, q]


@compiled
def _take(counts: NDArray[np.int64], key: int, counter: NDArray[np.uint64]) -> int:
    """Take one agent out, uniformly; return its state."""
    ticket = below(key, counter, counts.sum())
    for state in range(counts.size):
        ticket -= counts[state]
        if ticket < 0:
            counts[state] -= 1
            return state
    return -1
