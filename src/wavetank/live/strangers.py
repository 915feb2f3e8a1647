"""Connections that have not yet said who they are: a room of their own, in which patience takes nobody's place.

A listener must let strangers speak first, and a stranger may keep silent.  The room has a limit; when it is full the
oldest connection of the address with the most of them has to go.  So a host that opens many pushes out its own, and an
honest peer, which needs milliseconds, is through before it is the oldest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

MOST_STRANGERS = 64

C = TypeVar("C", bound=Hashable)


class Strangers(Generic[C]):
    """The room.

    Parameters
    ----------
    most : int
        Connections in it.

    Examples
    --------
    >>> room = Strangers(2)
    >>> [room.enter("a", "10.0.0.1"), room.enter("b", "10.0.0.1"), room.enter("c", "10.0.0.2")]
    [None, None, 'a']
    """

    def __init__(self, most: int = MOST_STRANGERS) -> None:
        self.most = most
        # In the order in which they came.
        self._inside: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._inside)

    def enter(self, connection: C, address: str) -> C | None:
        """Let a connection in; return the one that has to go for it, which is no longer inside."""
        self._inside[connection] = address
        if len(self._inside) <= self.most:
            return None
        shares = Counter(self._inside.values())
        largest = max(shares.values())
        out = next(each for each, place in self._inside.items() if shares[place] == largest)
        del self._inside[out]
        return out

    def leave(self, connection: C) -> None:
        """Let a connection out: it has said who it is, or it is gone."""
        self._inside.pop(connection, None)


def address_of(name: object) -> str:
    """Return the host of what ``get_extra_info("peername")`` says, "" where there is none."""
    return str(name[0]) if isinstance(name, tuple) and name else ""
