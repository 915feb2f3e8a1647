"""What a replicated log is applied to here: named registers, each request at most once.

The commands are those of the histories that the consistency checker reads: ``("read", key)``,
``("write", key, value)``, ``("cas", key, (old, new))``, ``("append", key, value)``.  A ``cas`` that finds another
value, and an ``append`` to what is no sequence, give False and change nothing.
"""

from __future__ import annotations

from typing import Any

from wavetank.errors import BadValueError

ACTIONS = ("read", "write", "cas", "append")


class Registers:
    """Named registers that remember which requests they have seen.

    Attributes
    ----------
    values : dict
        Name to value; a register that was never written holds None.
    results : dict
        Number of a request to what it gave, so that a request that comes twice takes effect once.
    """

    __slots__ = ("results", "values")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.results: dict[int, Any] = {}

    def apply(self, number: int, command: Any) -> Any:
        """Apply a request, or return what it gave when it was applied before."""
        if number in self.results:
            return self.results[number]
        result = self.results[number] = self._apply(command)
        return result

    def _apply(self, command: Any) -> Any:
        if not is_command(command):
            # A faulty server may bring anything into the log; it must mean the same to all, and harm none.
            return None
        action, key = command[0], command[1]
        if action == "read":
            return self.values.get(key)
        if action == "write":
            self.values[key] = command[2]
            return None
        if action == "append":
            before = self.values.get(key)
            if before is not None and not isinstance(before, tuple | list):
                return False
            self.values[key] = (*(before or ()), command[2])
            return None
        old, new = command[2]
        if self.values.get(key) != old:
            return False
        self.values[key] = new
        return True


def is_command(command: Any) -> bool:
    """Return whether the registers know this command."""
    return (
        isinstance(command, tuple | list)
        and len(command) >= 2
        and command[0] in ACTIONS
        and isinstance(command[1], str)
        and len(command) == (2 if command[0] == "read" else 3)
        and (command[0] != "cas" or (isinstance(command[2], tuple | list) and len(command[2]) == 2))
    )


def check_command(command: Any) -> None:
    """Raise when a request is none of the commands of the registers.

    Raises
    ------
    BadValueError
    """
    if not is_command(command):
        raise BadValueError(
            "The registers do not know this command.",
            given=command,
            allowed='("read", key), ("write", key, value), ("append", key, value), ("cas", key, (old, new))',
        )
