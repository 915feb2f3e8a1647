"""An instance of ranks that serve a small model: it gives out requests, fences who is gone, and starts replacements.

What the ranks say of tokens is taken from the process that has the request, in order, once.  A request of a rank that
is gone goes to another one with what was said already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.ranks import Event, Fault, Ranks
from wavetank.machine.atomic_words import publish
from wavetank.serving.rank_failures.board import LINE, Board
from wavetank.serving.rank_failures.interface import REPAIRS, InfeasibleError
from wavetank.serving.rank_failures.plan import spread
from wavetank.serving.rank_failures.rank_program import memory_of, serve
from wavetank.serving.rank_failures.small_model import VOCABULARY, Shape, expert_weights

# What a rank may do meanwhile; a step is far shorter.
_START_TIMEOUT_S = 60.0
_MOST_PENDING = 4096


@dataclass
class Answer:
    """A request and what has been said to it.

    Parameters
    ----------
    number : int
    prompt : list of int
    count : int
        Tokens of the whole answer.
    said : list of int
    rank, incarnation : int
        Who answers; -1: nobody yet.
    said_s : list of float
        When each token came, on the monotonic clock.
    error : WavetankError, optional
        Why there will be no more.
    """

    number: int
    prompt: list[int]
    count: int
    said: list[int] = field(default_factory=list)
    rank: int = -1
    incarnation: int = -1
    said_s: list[float] = field(default_factory=list)
    error: WavetankError | None = None

    @property
    def done(self) -> bool:
        """Return whether all has been said, or no more will be."""
        return self.error is not None or len(self.said) >= self.count


@dataclass(frozen=True)
class Change:
    """A mask that a rank applied.

    Parameters
    ----------
    rank, epoch : int
    members : tuple of int
    sources : tuple of str
        Where the plan took weights from.
    missing : int
        Experts that are nowhere.
    addresses : tuple of int
        Of the rank's tables.
    expert_of : tuple of int
    at_s : float
        On the monotonic clock.
    incarnation : int
        Which of the processes in the rank's place it was.
    start : int
        How often all processes had been started anew; epochs are counted from the last start.
    """

    rank: int
    epoch: int
    members: tuple[int, ...]
    sources: tuple[str, ...]
    missing: int
    addresses: tuple[int, ...]
    expert_of: tuple[int, ...]
    at_s: float
    incarnation: int
    start: int


class Instance:
    """Ranks that serve one model together.

    Parameters
    ----------
    shape : Shape
    ranks, slots : int
        Slots for experts are those of one rank; 0: as many as there are experts.
    replicas : int
        Of each expert.
    repair : str
        ``experts``: what is missing is loaded by survivors.  ``nothing``: tokens do without.  ``group``: survivors wait
        for a replacement and begin anew with it.  ``restart``: all processes are started again.
    host, disk : bool
        Where weights can be had besides live ranks.
    timeout_s : float
        Without a sign of life for that long, a rank is fenced.
    tokens : int
        Requests of a rank in one step.
    rejoin : bool
        Whether a process is started in the place of one that is gone.
    kill_fenced : bool
        Whether a rank that is fenced is killed, too; only tests leave it alive.
    constant : bool
        Whether ranks look slots up in numbers fixed at the start.
    """

    def __init__(
        self, shape: Shape, *, ranks: int = 4, slots: int = 0, replicas: int = 2, repair: str = "experts",
        host: bool = True, disk: bool = True, timeout_s: float = 1.0, tokens: int = 8, rejoin: bool = True,
        kill_fenced: bool = True, constant: bool = False,
    ) -> None:  # fmt: skip
        if repair not in REPAIRS:
            raise BadValueError("There is no such repair.", given=repair, allowed=REPAIRS, where="repair")
        if not 0.01 <= timeout_s <= 3600:
            raise BadValueError("A rank is late after some time.", given=timeout_s, allowed="0.01 to 3600 s")
        slots = slots or shape.all_experts
        spread(shape.all_experts, ranks, slots, replicas)
        self.shape, self.size, self.slots, self.repair, self.rejoin = shape, ranks, slots, repair, rejoin
        self.kill_fenced, self.host = kill_fenced, host
        self.tokens = tokens
        self._settings = {
            "shape": dataclasses.asdict(shape), "slots": slots, "tokens": tokens, "replicas": replicas,
            "repair": repair, "host": host, "disk": disk, "timeout_s": timeout_s, "constant": constant,
        }  # fmt: skip
        self.answers: dict[int, Answer] = {}
        self.changes: list[Change] = []
        self.fenced = [0] * ranks
        self.begun: list[int] = [0] * ranks
        self.deaths = 0
        self.starts = 0
        # Who takes part, as far as is known here.
        self.ready: set[int] = set()
        self.failure: WavetankError | None = None
        # Points at which the next replacements die.
        self.replacement_faults: list[str] = []
        # Called with each token as it comes.
        self.heard: Callable[[Answer], None] | None = None
        self._following = 0
        # Of each rank: its last sign of life, when it was seen first, and whether its process has given one.
        self._beats: list[tuple[int, float, bool]] = [(0, 0.0, False)] * ranks
        self._timeout_s, self._watched_s = timeout_s, 0.0
        self._stack = contextlib.ExitStack()
        self._group = contextlib.ExitStack()
        self.ranks: Ranks
        self.board: Board
        self._folder = ""

    # -- begin and end -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            self._folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="wavetank-experts-"))
            for expert in range(self.shape.all_experts):
                np.save(Path(self._folder) / f"expert-{expert}.npy", expert_weights(self.shape, expert))
            undo.callback(self._close_group)
            self._open_group()
            self._stack = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open_group(self) -> None:
        shape, settings = self.shape, self._settings
        size = memory_of(shape, self.size, self.slots, self.tokens)
        arguments = {**settings, "incarnation": 0, "folder": self._folder}
        self.ranks = Ranks(serve, self.size, arguments=arguments, shared_bytes=size, timeout_s=_START_TIMEOUT_S)
        with contextlib.ExitStack() as undo:
            undo.enter_context(self.ranks)
            if self.ranks.shared is None:
                raise WavetankError("The ranks have no shared memory.")
            self.board = Board(self.ranks.shared, self.size, self.slots, shape.all_experts, shape.expert_numbers)
            if self.host:
                for expert in range(shape.all_experts):
                    self.board.host[expert] = expert_weights(shape, expert)
            self.fenced, self.begun, self.ready = [0] * self.size, [0] * self.size, set()
            self._beats = [(0, 0.0, False)] * self.size
            self._group = undo.pop_all()

    def _close_group(self) -> None:
        self._group.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(self, prompt: Sequence[int], count: int, rank: int = -1) -> Answer:
        """Ask for the continuation of a prompt; it comes while :meth:`pump` runs.

        Parameters
        ----------
        prompt : sequence of int
        count : int
            Tokens of the answer.
        rank : int
            Who is to answer; the one with fewest requests by default.

        Raises
        ------
        BadValueError
            If the prompt is empty or has tokens that there are not, or no token is asked for.
        WavetankError
            If too many requests wait, or the instance cannot serve any more.
        """
        if not prompt or not all(0 <= token < VOCABULARY for token in prompt) or count < 1:
            raise BadValueError("A request has a prompt and asks for tokens.", given=f"{len(prompt)} and {count}",
                                allowed=f"1 or more of each, tokens 0 to {VOCABULARY - 1}")  # fmt: skip
        if self.failure is not None:
            raise self.failure
        if sum(not each.done for each in self.answers.values()) >= _MOST_PENDING:
            raise WavetankError("Too many requests wait.", given=_MOST_PENDING)
        answer = Answer(self._following, list(prompt), count)
        self._following += 1
        self.answers[answer.number] = answer
        self._give(answer, rank)
        return answer

    def forget(self, answer: Answer) -> None:
        """Stop answering a request whose client has gone."""
        self.answers.pop(answer.number, None)
        if answer.rank >= 0:
            self.ranks.send(answer.rank, ["forget", answer.number])
        self._count()

    def _give(self, answer: Answer, rank: int = -1) -> None:
        alive = [each for each in self.ranks.running if self.fenced[each] == self.begun[each]]
        if not alive:
            answer.rank = -1
            return
        if rank not in alive:
            # One that does not take part yet only if there is no other.
            rank = min(alive, key=lambda each: (each not in self.ready, self._load(each), each))
        answer.rank, answer.incarnation = rank, self.fenced[rank]
        self.ranks.send(rank, ["request", answer.number, answer.prompt, answer.said, answer.count])
        self._count()

    def _count(self) -> None:
        publish(self.board.work, 0, sum(not each.done for each in self.answers.values()))

    # -- what happens --------------------------------------------------------------------------------------------------

    def pump(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Take what ranks say, for a time or until something is true; return whether it became true.

        Parameters
        ----------
        seconds : float
        until : callable, optional

        Raises
        ------
        InfeasibleError
            If an expert cannot be had any more.
        WavetankError
            If a rank failed otherwise.
        """
        stop = time.monotonic() + seconds
        while True:
            if self.failure is not None:
                raise self.failure
            if until is not None and until():
                return True
            left = stop - time.monotonic()
            if left <= 0:
                return False
            self._watch()
            for event in self.ranks.events(min(left, 0.05)):
                if self._take(event) or self.failure is not None:
                    # The processes are other ones now, or of no use any more.
                    break
                if until is not None and until():
                    return True

    def _watch(self) -> None:
        """End who gives no sign of life for twice the time-out: there may be no other rank that could report it."""
        now = time.monotonic()
        away_s, self._watched_s = now - self._watched_s, now
        for rank in self.ranks.running:
            count, since, begun = self._beats[rank]
            beat = int(self.board.beats[rank * LINE])
            if beat != count:
                self._beats[rank] = (beat, now, True)
            elif away_s > self._timeout_s / 2:
                # This process did not look, or stood still itself.
                self._beats[rank] = (count, since + away_s, begun)
            elif begun and now - since > 2 * self._timeout_s and self.fenced[rank] == self.begun[rank]:
                self._end(rank)

    def _end(self, rank: int) -> None:
        if self.kill_fenced:
            self.ranks.kill(rank)
        else:
            self._fence(rank)

    def _take(self, event: Event) -> bool:
        if event.kind == "reported":
            self._hear(event.rank, event.value)
            return False
        if event.kind == "raised" and "FencedError" not in str(event.value) and "Infeasible" not in str(event.value):
            self._fail(WavetankError(f"Rank {event.rank} failed.", given=str(event.value)[:500]))
        return self._lost(event.rank)

    def _hear(self, rank: int, said: list[Any]) -> None:
        what = said[0]
        if what == "tokens":
            now = time.monotonic()
            for number, index, token in said[3]:
                answer = self.answers.get(number)
                mine = answer is not None and (answer.rank, answer.incarnation) == (rank, said[1])
                if answer is None or not mine or index != len(answer.said) or self.fenced[rank] > said[1]:
                    continue
                answer.said.append(token)
                answer.said_s.append(now)
                if self.heard is not None:
                    self.heard(answer)
                if answer.done:
                    self._count()
        elif what == "applied":
            if said[7] == self.fenced[rank]:
                self.ready.add(rank)
            self.changes.append(Change(rank, said[1], tuple(said[2]), tuple(said[3]), said[4], tuple(said[5]),
                                       tuple(said[6]), time.monotonic(), said[7], self.starts))  # fmt: skip
        elif what == "late" and self.fenced[said[1]] == said[2]:
            self._end(said[1])
        elif what == "infeasible":
            self._fail(InfeasibleError("The instance cannot serve any more.", experts=tuple(said[1]), given=said[2]))

    def _fail(self, error: WavetankError) -> None:
        self.failure = self.failure or error
        for answer in self.answers.values():
            if not answer.done:
                answer.error = error
                if self.heard is not None:
                    self.heard(answer)

    def _fence(self, rank: int) -> None:
        """Say to all that a rank is gone, and give its requests to others."""
        self.fenced[rank] += 1
        self.ready.discard(rank)
        self.board.fence(rank, self.fenced[rank])
        for answer in list(self.answers.values()):
            if answer.rank == rank and not answer.done:
                answer.rank, answer.incarnation = -1, -1
                self._give(answer)

    def _load(self, rank: int) -> int:
        return sum(each.rank == rank and not each.done for each in self.answers.values())

    def _lost(self, rank: int) -> bool:
        """Deal with the end of a process; return whether all processes are new."""
        if self.failure is not None:
            return False
        self.deaths += 1
        self.board.spoil(rank)
        if self.fenced[rank] == self.begun[rank]:
            self._fence(rank)
        self.begun[rank] = self.fenced[rank]
        if self.repair == "restart" or not self.ready:
            # Nobody is left who could take a replacement in.
            self._close_group()
            self.starts += 1
            self._open_group()
            for answer in self.answers.values():
                if not answer.done:
                    self._give(answer)
            return True
        if self.rejoin:
            arguments = {**self._settings, "incarnation": self.fenced[rank], "folder": self._folder}
            faults = [Fault(rank=rank, point=self.replacement_faults.pop(0))] if self.replacement_faults else []
            self.ranks.replace(rank, arguments=arguments, faults=faults)
            self._beats[rank] = (int(self.board.beats[rank * LINE]), time.monotonic(), False)
        return False

    # -- what is done to it --------------------------------------------------------------------------------------------

    def strike(self, rank: int, point: str = "", kind: str = "kill", seconds: float = 0.0) -> None:
        """Let something happen to a rank: at once, or when it comes to a point of its program.

        Parameters
        ----------
        rank : int
        point : str
            Empty: at once.
        kind : str
            ``kill`` or ``stop``.
        seconds : float
            After the point.
        """
        if point:
            self.ranks.send(rank, ["expect", point, kind, seconds])
        elif kind == "kill":
            self.ranks.kill(rank)
        else:
            self.ranks.stop(rank)

    def members(self) -> tuple[int, ...]:
        """Return who took part in the last mask that was applied by all of it."""
        for start, epoch in sorted({(each.start, each.epoch) for each in self.changes}, reverse=True):
            said = [each for each in self.changes if (each.start, each.epoch) == (start, epoch)]
            if {each.rank for each in said} == set(said[0].members):
                return said[0].members
        return ()
