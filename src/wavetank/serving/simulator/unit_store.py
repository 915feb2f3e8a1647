"""What a worker of the readable simulator keeps of prompts, in plain Python: a dictionary for each thing it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from wavetank.serving.simulator.reuse import Match, ReuseRule, Units, parents


class _AllAlike(Mapping[int, int]):
    """The tokens of blocks, whichever they are."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __getitem__(self, unit: int) -> int:
        return self.tokens

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(eq=False)
class UnitStore:
    """Units of prompts in one worker's KV cache: those that requests hold, and those kept for reuse.

    Attributes
    ----------
    tokens : mapping of int
        Of each unit.
    rule : ReuseRule
    worker : int
        Whose store it is.
    free : set of int
        Units that are found wherever they stand.
    parents : mapping of int
        The unit before each in its prompt, -1 for none; where units have names.
    residents : list of set of int
        The units that each worker has all the time, of all workers; one list for all stores.
    known : list of set of int
        The units that each worker had at the last refresh beside those; one list for all stores.
    held, kept : dict
        Units in use, with their users, and units kept for reuse, least recently used first.
    held_tokens, kept_tokens : int
        Of these.
    named : dict
        The unit that has a name.
    """

    tokens: Mapping[int, int]
    rule: ReuseRule = field(default_factory=ReuseRule)
    worker: int = 0
    free: Set[int] = frozenset()
    parents: Mapping[int, int] = field(default_factory=dict)
    residents: list[set[int]] = field(default_factory=lambda: [set()])
    known: list[set[int]] = field(default_factory=lambda: [set()])
    held: dict[int, int] = field(default_factory=dict)
    kept: dict[int, None] = field(default_factory=dict)
    named: dict[int, int] = field(default_factory=dict)
    held_tokens: int = 0
    kept_tokens: int = 0

    @classmethod
    def of_blocks(cls, tokens: int) -> UnitStore:
        """Return a store of blocks of one length.

        Parameters
        ----------
        tokens : int
            Of a block.
        """
        return cls(_AllAlike(tokens))

    @classmethod
    def of_workers(cls, units: Units, rule: ReuseRule, workers: int) -> Callable[[int], UnitStore]:
        """Return what makes the store of a worker, by its number.

        Parameters
        ----------
        units : Units
        rule : ReuseRule
        workers : int
        """
        known: list[set[int]] = [set() for _ in range(workers)]
        residents: list[set[int]] = [set() for _ in range(workers)]
        if units.resident is not None:
            residents = [set(np.flatnonzero(row).tolist()) for row in units.resident]
        free = set[int]() if units.free is None else set(np.flatnonzero(units.free).tolist())
        before = {} if units.names is None else dict(enumerate(parents(units).tolist()))
        tokens = dict(enumerate(units.tokens.tolist()))

        def store(worker: int) -> UnitStore:
            return cls(tokens, rule, worker, free, before, residents, known)

        return store

    @property
    def there(self) -> set[int]:
        """The units of its KV cache."""
        return {*self.held, *self.kept}

    def _has(self, unit: int) -> bool:
        return unit in self.held or unit in self.kept or unit in self.residents[self.worker]

    def _had(self, worker: int, unit: int) -> bool:
        return unit in self.known[worker] or unit in self.residents[worker]

    def match(self, prompt: int, units: Sequence[int], names: Sequence[int]) -> tuple[Match, int]:
        """Return what the worker has of a prompt, and how many tokens of it come from other workers.

        Parameters
        ----------
        prompt : int
            Its tokens.
        units, names : sequence of int
            Of this prompt; no names where units have none.
        """
        kinds = list[str]()  # of each unit: "exact", "moved", or "" for one that was not found
        sources = list[int]()  # of each moved unit that is not free: where it comes from
        fetched = place = 0
        for number, unit in enumerate(units):
            place += self.tokens[unit]
            here, source, kind = self._has(unit), -1, ""
            behind_exact = all(each == "exact" or (units[i] in self.free and each) for i, each in enumerate(kinds))
            if unit in self.free or (behind_exact and place < prompt):
                elsewhere = self.rule.fetch and any(
                    self._had(other, unit) for other in range(len(self.known)) if other != self.worker
                )
                if not here and elsewhere:
                    fetched += self.tokens[unit]
                if here or elsewhere:
                    kind = "moved" if unit in self.free else "exact"
            if not kind and place < prompt and names and names[number] >= 0 and unit not in self.free:
                source = self.named.get(names[number], -1)
                kind = "moved" if source in self.held or source in self.kept else ""
            kinds.append(kind)
            sources.append(source if kind else -1)
        exact, moved = (sum(self.tokens[u] for u, k in zip(units, kinds, strict=True) if k == which)
                        for which in ("exact", "moved"))  # fmt: skip
        firsts = sum(min(self.rule.again_tokens, run) for run in self._runs(units, kinds, sources))
        again = max(self.rule.again(firsts, moved), exact + moved - (prompt - 1))
        return Match(exact + moved - again, again, fetched * self.rule.bytes_per_token), fetched

    def known_tokens(self, prompt: int, units: Sequence[int]) -> int:
        """Return how many tokens of a prompt are in units that the worker had at the last refresh.

        Parameters
        ----------
        prompt : int
            Its tokens; the last one never counts.
        units : sequence of int
        """
        known = place = 0
        leading = True
        for unit in units:
            place += self.tokens[unit]
            if self._had(self.worker, unit) and (unit in self.free or (leading and place < prompt)):
                known += self.tokens[unit]
            else:
                leading = False
        return min(known, prompt - 1)

    def _runs(self, units: Sequence[int], kinds: Sequence[str], sources: Sequence[int]) -> list[int]:
        """Return the tokens of each moved run: units one behind another that stood one behind another, too."""
        runs = list[int]()
        for i, kind in enumerate(kinds):
            if kind != "moved":
                continue
            goes_on = sources[i] >= 0 and i > 0 and sources[i - 1] >= 0 and self.parents[sources[i]] == sources[i - 1]
            if not goes_on:
                runs.append(0)
            runs[-1] += self.tokens[units[i]]
        return runs

    def shared_tokens(self, units: Sequence[int]) -> int:
        """Return how many tokens are in units that others hold.

        Parameters
        ----------
        units : sequence of int
        """
        return sum(self.tokens[unit] for unit in units if unit in self.held)

    def hold(self, units: Sequence[int], names: Sequence[int]) -> int:
        """Hold a request's units and return their tokens; the caller makes room.

        Parameters
        ----------
        units, names : sequence of int
        """
        own = [unit for unit in units if unit not in self.residents[self.worker]]
        for unit in own:
            if unit in self.kept:
                del self.kept[unit]
                self.kept_tokens -= self.tokens[unit]
            if unit not in self.held:
                self.held_tokens += self.tokens[unit]
            self.held[unit] = self.held.get(unit, 0) + 1
        for unit, name in zip(units, names, strict=False):
            there = self.named.get(name, -1)
            if name >= 0 and there not in self.held and there not in self.kept:
                self.named[name] = unit
        return sum(self.tokens[unit] for unit in own)

    def release(self, units: Sequence[int]) -> int:
        """Give up a request's units, the last one first, and return their tokens.

        Parameters
        ----------
        units : sequence of int
        """
        own = [unit for unit in units if unit not in self.residents[self.worker]]
        for unit in reversed(own):
            self.held[unit] -= 1
            if not self.held[unit]:
                del self.held[unit]
                self.kept[unit] = None
                self.held_tokens -= self.tokens[unit]
                self.kept_tokens += self.tokens[unit]
        return sum(self.tokens[unit] for unit in own)

    def evict(self, room: int) -> None:
        """Drop what is kept for reuse, least recently used first, until it fits.

        Parameters
        ----------
        room : int
            Tokens that nobody holds.
        """
        most = min(room, self.rule.store_tokens) if self.rule.store_tokens else room
        while self.kept and self.kept_tokens > most:
            oldest = next(iter(self.kept))
            del self.kept[oldest]
            self.kept_tokens -= self.tokens[oldest]
