"""Two-phase commit: a transaction manager commits when every resource manager is prepared, and may abort before.

It is here because its state spaces are published: every step of the specification is a timer or a message of a node, so
the explorer must count the same states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.check.explore.environment import Symmetry
from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.node import Message, Node, Snapshot


class Prepared(Message, frozen=True):
    """A resource manager is ready to commit."""


class Commit(Message, frozen=True):
    """The transaction is committed."""


class Abort(Message, frozen=True):
    """The transaction is aborted."""


class TransactionManager(Node):
    """Node 0: decides when all are prepared, or gives up before."""

    def __init__(self, size: int, needed: int) -> None:
        self.state = "init"
        self.needed = needed
        self.prepared = (False,) * size

    def start(self) -> None:
        """Be free to abort at any time."""
        self.context.set_timer("abort", 1)

    def receive(self, sender: int, message: Any) -> None:
        """Note who is prepared; all are: be free to commit."""
        if self.state == "init":
            self.prepared = (*self.prepared[:sender], True, *self.prepared[sender + 1 :])
            if sum(self.prepared) >= self.needed:
                self.context.set_timer("commit", 1)

    def timer(self, name: str) -> None:
        """Commit or abort."""
        self.context.cancel_timer("abort")
        self.context.cancel_timer("commit")
        self.state = "committed" if name == "commit" else "aborted"
        self.context.broadcast(Commit() if name == "commit" else Abort())
        self.context.decide(self.state)


class ResourceManager(Node):
    """All other nodes: prepare or abort alone, then do what the manager decided."""

    def __init__(self) -> None:
        self.state = "working"

    def start(self) -> None:
        """Be free to prepare and to abort."""
        self.context.set_timer("prepare", 1)
        self.context.set_timer("abort", 1)

    def receive(self, sender: int, message: Any) -> None:
        """Do what the manager decided."""
        self._leave_work("committed" if isinstance(message, Commit) else "aborted")

    def timer(self, name: str) -> None:
        """Prepare, or abort alone."""
        self._leave_work("prepared" if name == "prepare" else "aborted")
        if name == "prepare":
            self.context.send(0, Prepared())

    def _leave_work(self, state: str) -> None:
        self.context.cancel_timer("prepare")
        self.context.cancel_timer("abort")
        self.state = state


@dataclass(frozen=True, kw_only=True)
class TwoPhaseCommit:
    """Node 0 manages the transaction, all others hold its resources.

    References
    ----------
    Gray and Lamport, ACM TODS 2006.
    """

    missing: int = setting(
        0, says="Resource managers whose messages are not awaited; more than 0 is unsafe", low=0, high=64
    )

    messages: ClassVar[tuple[type[Message], ...]] = (Prepared, Commit, Abort)
    symmetry: ClassVar[Symmetry] = Symmetry(ids={TransactionManager: {"prepared": "index"}}, fixed=(0,))

    def node(self, index: int, size: int) -> Node:
        """Return a node."""
        if size < 2:
            raise BadValueError(
                "A transaction has a manager and resources.", given=size, allowed="2 or more", where="size"
            )
        return TransactionManager(size, max(size - 1 - self.missing, 1)) if index == 0 else ResourceManager()

    def max_faults(self, size: int) -> int:
        """Return 0: it blocks when its manager is gone."""
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        """Return who committed while another aborted."""
        last: dict[str, int] = {}
        for index in sorted(snapshot.correct - {0}, reverse=True):
            last[snapshot.nodes[index].state] = index  # type: ignore[attr-defined]
        if "committed" in last and "aborted" in last:
            return f"node {last['committed']} committed and node {last['aborted']} aborted"
        return ""
