"""How far one task is: which groups of answers it may ask for, and which it trains on next.

This is all that keeps answers young: a task with version v has asked for ``(v + s_max + 1) * groups`` groups at most.
An update takes the oldest groups whose answers are all there, and waits where it would leave more of some age than
later updates can take in time.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """The groups of one task, by number.

    Parameters
    ----------
    updates : int
        Of the whole task.
    groups : int
        Groups of an update.
    s_max : int
        How many updates old an answer may be.
    version : int
        Updates done.

    Attributes
    ----------
    asked : int
        Groups asked for so far; their numbers begin at 0.
    open : dict of int to int
        Version of each group that was asked for and not trained on, in order.
    whole : set of int
        Groups of these whose answers are all there.
    """

    updates: int
    groups: int
    s_max: int
    version: int = 0
    asked: int = field(init=False)
    open: dict[int, int] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.asked = self.version * self.groups

    @property
    def done(self) -> bool:
        """Whether all updates are done."""
        return self.version >= self.updates

    def ask(self) -> list[int]:
        """Return the groups to ask for now."""
        most = min(self.version + self.s_max + 1, self.updates) * self.groups
        new = list(range(self.asked, most))
        self.open.update(dict.fromkeys(new, self.version))
        self.asked = max(self.asked, most)
        return new

    @property
    def ready(self) -> bool:
        """Whether an update has enough groups, and what it leaves fits into the updates that may still take it."""
        if len(self.whole) < self.groups:
            return False
        taken = set(sorted(self.whole)[: self.groups])
        left = [version for group, version in self.open.items() if group not in taken]
        # Versions rise with the numbers of groups, so that the count at its place is of all that are as old or older.
        return all(
            many <= (version + self.s_max - self.version) * self.groups for many, version in enumerate(left, start=1)
        )

    def take(self) -> list[tuple[int, int]]:
        """Take the oldest groups for an update; return each with how many updates old it is."""
        chosen = sorted(self.whole)[: self.groups]
        self.whole.difference_update(chosen)
        return [(group, self.version - self.open.pop(group)) for group in chosen]
