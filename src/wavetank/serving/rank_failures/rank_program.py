"""What a rank of an instance does: steps with all others, and whatever a fault makes necessary, until it is stopped.

Any wait ends when a rank is fenced or a letter comes.  The rank then leaves its step, agrees on a mask, gets the
weights that the plan gives it, and makes the step that it left again, under a number of the new epoch.  That gives the
same result, as each rank's requests depend on nothing but themselves.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.rank_process import Rank
from wavetank.serving.exchange.interface import Batch, Task
from wavetank.serving.exchange.live import driven
from wavetank.serving.exchange.port import Port, memory_bytes
from wavetank.serving.exchange.relay_free import RelayFree
from wavetank.serving.exchange.table import ExpertTable
from wavetank.serving.rank_failures.agreement import Agreement, Join, bits
from wavetank.serving.rank_failures.board import LINE, Board, board_bytes
from wavetank.serving.rank_failures.interface import InfeasibleError, Integers, Plan, Rates
from wavetank.serving.rank_failures.plan import coverage_plan, spread, trimmed
from wavetank.serving.rank_failures.small_model import Shape, SmallModel, expert_output

# Steps of an epoch have numbers above those of all epochs before.
_EPOCH_STEPS = 1 << 32
_IDLE_S = 0.01
_REST_S = 0.0005
_ASK_S = 0.25
_NO_LIMIT_S = 1e9
_PART_TOKENS = 256
# Rows of one writer each: what a rank that was masked out still writes is read by nobody.
EXCHANGE = RelayFree(schedule="fixed")


class Interrupted(Exception):  # noqa: N818  (no fault: something is to be agreed on)
    """Something is to be agreed on before any step."""


class FencedError(WavetankError):
    """This process was masked out; a later one has its place."""


def task_of(shape: Shape, ranks: int, slots: int, tokens: int) -> Task:
    """Return the exchange's task of an instance."""
    return Task(ranks=ranks, slots=slots, hidden=shape.hidden, tokens=tokens, choices=shape.choices, dtype="float64")


def memory_of(shape: Shape, ranks: int, slots: int, tokens: int) -> int:
    """Return the shared memory of an instance, in bytes."""
    board = board_bytes(ranks, slots, shape.all_experts, shape.expert_numbers)
    return board + memory_bytes(EXCHANGE, task_of(shape, ranks, slots, tokens))


class Served:
    """A request on the rank that answers it.

    Parameters
    ----------
    number : int
    prompt, said : sequence of int
        Tokens; what was said before is not said again.
    count : int
        Tokens of the whole answer.
    model : SmallModel
    beat : callable, optional
        Called between parts of a long prompt: who reads one is not late.
    """

    def __init__(
        self, number: int, prompt: Sequence[int], said: Sequence[int], count: int, model: SmallModel,
        beat: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.number, self.count, self.said = number, count, len(said)
        self.last = [*prompt, *said][-1]
        context = np.zeros((1, model.shape.hidden))
        for place, token in enumerate([*prompt, *said][:-1]):
            if beat is not None and place % _PART_TOKENS == 0:
                beat()
            context = model.advance(context, [token])
        self.context = context


class RankProgram:
    """One rank of an instance.

    Parameters
    ----------
    rank : Rank
    shape : Shape
    slots, tokens, replicas : int
    repair : str
        As for the systems of this room.
    host, disk : bool
        Where weights can be had besides live ranks.
    timeout_s : float
        Without a sign of life for that long, a rank is late.
    incarnation : int
        How many processes were in this rank's place before.
    folder : str
        Where the weights are on the disk.
    constant : bool
        Whether slots come from numbers that are fixed at the start, in place of the table.
    """

    def __init__(
        self, rank: Rank, shape: Shape, *, slots: int, tokens: int, replicas: int, repair: str, host: bool, disk: bool,
        timeout_s: float, incarnation: int, folder: str, constant: bool = False,
    ) -> None:  # fmt: skip
        if rank.shared is None:
            raise BadValueError("Ranks of an instance share memory.", given="none", hint="give Ranks shared_bytes")
        self.rank, self.me, self.size, self.shape, self.slots = rank, rank.number, rank.size, shape, slots
        self.repair, self.host, self.disk, self.timeout_s, self.folder = repair, host, disk, timeout_s, Path(folder)
        self.incarnation, self.replicas, self.tokens = incarnation, replicas, tokens
        self.model = SmallModel(shape)
        self.board = Board(rank.shared, rank.size, slots, shape.all_experts, shape.expert_numbers)
        begin = board_bytes(rank.size, slots, shape.all_experts, shape.expert_numbers)
        self.port = Port(rank.shared[begin:], EXCHANGE, task_of(shape, rank.size, slots, tokens), self.me)
        self.home = spread(shape.all_experts, rank.size, slots, replicas)
        self.table = ExpertTable(shape.all_experts, rank.size, slots, rank.size)
        # By a token's turn and its expert: a slot, in memory that stays where it is.
        self.routes = np.full((rank.size, shape.all_experts), -1, np.int64)
        self.turns = (np.arange(tokens, dtype=np.int64) % rank.size)[:, None]
        self.held = [-1] * slots
        everybody = (1 << rank.size) - 1
        epoch, mask = (1, everybody) if incarnation == 0 else (0, 1 << self.me)
        self.agreement = Agreement(self.me, epoch, mask, incarnation=incarnation, whole=repair == "group")
        self.restored = 0
        self.fences = [self.board.fenced(other) for other in range(rank.size)]
        self.read = [self.board.head(self.me, other) for other in range(rank.size)]
        self.agreement.lost = dict(enumerate(self.fences))
        self.beats = [(-1, 0.0)] * rank.size
        self.watched_s = time.monotonic()
        self.asks_s = 0.0
        self.reported: set[tuple[int, int]] = set()
        self.requests: list[Served] = []
        self.layer, self.states, self.stopped = 0, np.empty((0, shape.hidden)), False
        self.constant: Integers | None = None
        self.wants_constant = constant
        # A build in which nobody can be left out: it looks at no fence, no letter and no sign of life.
        self.fixed = False
        self.steps = 0

    # -- what interrupts -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Give a sign of life and see what others say.

        Raises
        ------
        Interrupted
            If there is something to agree on.
        FencedError
            If this process was masked out.
        """
        self.take()
        agreement = self.agreement
        if not agreement.settled or agreement.needed or agreement.epoch != self.restored:
            raise Interrupted

    def take(self) -> None:
        """Take fences and letters, and say who is late."""
        board, agreement = self.board, self.agreement
        board.beat(self.me)
        agreement.held = tuple(self.held)
        if board.fenced(self.me) > self.incarnation:
            raise FencedError("This rank was masked out.", given=f"rank {self.me}", hint="a new one has its place")
        for other in range(self.size):
            if board.fenced(other) > self.fences[other]:
                self.fences[other] = board.fenced(other)
                self._send(agreement.lose(other, self.fences[other]))
            while self.read[other] < board.head(self.me, other):
                incarnation, message = board.read(self.me, other, self.read[other])
                self.read[other] += 1
                if incarnation == board.fenced(other):
                    self._send(agreement.receive(other, message))
        self._watch()

    def _watch(self) -> None:
        """Report members that give no sign of life for too long."""
        now = time.monotonic()
        # Time in which this rank did not look proves nothing about others: it may have stood still with them.
        away_s, self.watched_s = now - self.watched_s, now
        if away_s > self.timeout_s / 4:
            self.beats = [(count, since + away_s) for count, since in self.beats]
        for other in bits((self.agreement.mask | self.agreement.proposed_mask) & ~self.agreement.gone):
            count, since = self.beats[other]
            beat = int(self.board.beats[other * LINE])
            if beat != count:
                self.beats[other] = (beat, now)
                continue
            key, silent = (other, self.fences[other]), beat and now - since > self.timeout_s
            if silent and other != self.me and key not in self.reported:
                self.reported.add(key)
                self.rank.report(["late", *key])

    def _send(self, out: list[tuple[int, Any]]) -> None:
        for to, message in out:
            self.rank.point("letter")
            self.board.send(self.me, self.incarnation, to, message)

    # -- faults --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Load this rank's weights, and take part: at once, or as a new process when the others let it."""
        for slot in range(self.slots):
            expert = int(self.home[self.me * self.slots + slot])
            if expert >= 0:
                self.rank.point("load")
                self._load(slot, expert)
        if self.incarnation == 0:
            self.agreement.holdings = {
                rank: tuple(self.home[rank * self.slots : (rank + 1) * self.slots].tolist())
                for rank in range(self.size)
            }
        else:
            self.rank.point("join")
            self.read = [self.board.head(self.me, other) for other in range(self.size)]

    def settle(self) -> None:
        """Agree on a mask where that is necessary, and get what the plan gives this rank, until steps may begin."""
        while True:
            try:
                while not self.agreement.settled or self.agreement.needed:
                    self.commands()
                    if self.stopped:
                        return
                    self._ask()
                    self.take()
                    time.sleep(_REST_S)
                self._restore()
            except Interrupted:
                continue
            return

    def _ask(self) -> None:
        """Say that this rank would take part, until it does: a new proposer may not have heard it."""
        now = time.monotonic()
        if self.agreement.epoch == 0 and now >= self.asks_s:
            self.asks_s = now + _ASK_S
            for other in range(self.size):
                if other != self.me:
                    self.board.send(self.me, self.incarnation, other, Join(self.incarnation))

    def _restore(self) -> None:
        agreement, rank = self.agreement, self.rank
        rank.point("apply")
        members, epoch = tuple(bits(agreement.mask)), agreement.epoch
        self.restored = epoch
        active = [int(each in members) for each in range(self.size)]
        held = np.full(self.size * self.slots, -1, np.int64)
        for member, holding in agreement.holdings.items():
            held[member * self.slots : member * self.slots + len(holding)] = holding
        plan = self._plan(held, active)
        expert_of = trimmed(plan.expert_of, self.size, self.replicas, self.home) if all(active) else plan.expert_of
        mine = slice(self.me * self.slots, (self.me + 1) * self.slots)
        for transfer in plan.transfers:
            if transfer.slot // self.slots == self.me:
                rank.point("repair")
                self._load(transfer.slot % self.slots, transfer.expert, transfer.source, look=True)
        self.held = expert_of[mine].tolist()
        self.table.change(active=active, expert_of=expert_of)
        self._route()
        self.constant = self.routes[0].copy() if self.wants_constant else None
        rank.point("repaired")
        self.board.complete(self.me, epoch)
        while self.board.incomplete(members, epoch) >= 0:
            self.look()
            time.sleep(_REST_S)
        self.port.regroup(members, epoch * _EPOCH_STEPS)
        table = self.table
        rank.report(["applied", epoch, list(members), [each.source for each in plan.transfers], len(table.missing),
                     [each.ctypes.data for each in
                      (table.active, table.expert_of, table.slots_with, table.replicas, self.routes)],
                     expert_of.tolist(), self.incarnation])  # fmt: skip

    def _plan(self, held: Integers, active: Sequence[int]) -> Plan:
        if self.repair == "nothing":
            return Plan(np.where(np.repeat(active, self.slots) == 1, held, -1), (), 0)
        sizes = [self.shape.expert_numbers * 8] * self.shape.all_experts
        return coverage_plan(held, active, sizes, rates=Rates(), host=self.host, disk=self.disk)

    def _load(self, slot: int, expert: int, source: str = "", look: bool = False) -> None:
        """Copy an expert's weights into a slot; it holds nothing until they are whole."""
        self.held[slot] = -1
        if source != "disk" and self.host:
            weights = self.board.host[expert]
        else:
            weights = np.load(self.folder / f"expert-{expert}.npy")
        self.board.put(self.me, slot, weights, self.look if look else None)
        if not self.board.sound(self.me, slot):
            raise WavetankError("Weights did not arrive as they were.", given=f"expert {expert}")
        self.held[slot] = expert

    # -- steps ---------------------------------------------------------------------------------------------------------

    def commands(self) -> None:
        """Take what the launcher sent."""
        waits = 0.0 if self.requests or int(self.board.work[0]) or not self.agreement.settled else _IDLE_S
        while (found := self.rank.command(waits)) is not None:
            waits = 0.0
            if found[0] == "stop":
                self.stopped = True
            elif found[0] == "request":
                beat = functools.partial(self.board.beat, self.me)
                self.requests.append(Served(found[1], found[2], found[3], found[4], self.model, beat))
            elif found[0] == "forget":
                self.requests = [each for each in self.requests if each.number != found[1]]
                self.layer = 0
            else:
                self.rank.expect(*found[1:])

    def step(self) -> None:
        """Make one step of the exchange, with this rank's requests or with none."""
        batch = self.requests[: self.tokens]
        if self.layer == 0:
            contexts = [self.model.advance(each.context, [each.last]) for each in batch]
            self.contexts = np.concatenate(contexts) if contexts else np.empty((0, self.shape.hidden))
            self.states = self.contexts
            self.batch = batch
        values, experts, gates = self.model.prepared(self.layer, self.states)
        look = None if self.fixed else self.look
        if look is not None:
            self.board.beat(self.me)
        given = self.port.begin(Batch(values, self.slots_of(experts), gates))
        arrived = driven(self.rank, self.port, EXCHANGE.dispatch(self.port, given), _NO_LIMIT_S, look=look)
        first = self.me * self.slots
        here = {
            slot: (lambda rows, slot=slot: expert_output(self.shape, self.board.weights[self.me, slot][:-1], rows))
            for slot in range(self.slots) if self.table.expert_of[first + slot] >= 0
        }  # fmt: skip
        driven(self.rank, self.port, self.port.run_experts(arrived, here), _NO_LIMIT_S, look=look)
        total = np.empty((values.shape[0], self.shape.hidden))
        combine = EXCHANGE.combine(self.port, given, arrived, total)
        driven(self.rank, self.port, combine, _NO_LIMIT_S, look=look)
        if look is not None:
            # What was read while another rank of a later epoch wrote does not count.
            look()
        self.states = self.states + total
        self.layer = (self.layer + 1) % self.shape.layers
        self.steps += 1
        if self.layer == 0 and self.batch:
            self._say(self.model.said(self.states))

    def _say(self, tokens: Integers) -> None:
        said = []
        for place, (request, token) in enumerate(zip(self.batch, tokens.tolist(), strict=True)):
            said.append([request.number, request.said, token])
            request.context = self.contexts[place : place + 1]
            request.last, request.said = token, request.said + 1
        # The next ones take turns where there are more requests than tokens of a step.
        rest = [each for each in self.requests if each not in self.batch]
        self.requests = rest + [each for each in self.batch if each.said < each.count]
        self.rank.report(["tokens", self.incarnation, self.agreement.epoch, said])

    def slots_of(self, experts: Integers) -> Integers:
        """Return where tokens' experts are; -1 where they are nowhere, which is let pass without repair alone.

        Parameters
        ----------
        experts : int64 array (tokens, choices)
        """
        if self.constant is not None:
            return self.constant[experts]
        return self.routes[self.turns[: experts.shape[0]], experts]

    def _route(self) -> None:
        """Write down which slot a token in each turn is sent to: this rank's own, else replicas in turns."""
        table, here = self.table, slice(self.me * self.slots, (self.me + 1) * self.slots)
        self.routes[:] = -1
        for expert in np.flatnonzero(table.replicas).tolist():
            for turn in range(self.size):
                self.routes[turn, expert] = table.slots_with[expert, (turn + self.me) % table.replicas[expert]]
        for place in np.flatnonzero(table.expert_of[here] >= 0).tolist():
            self.routes[:, table.expert_of[here][place]] = self.me * self.slots + place

    def run(self) -> int:
        """Serve until the launcher says stop; return the number of steps."""
        try:
            self.begin()
            self.settle()
            while not self.stopped:
                try:
                    self.commands()
                    if not self.stopped:
                        self.step()
                except Interrupted:
                    self.rank.point("agree")
                    self.settle()
        except InfeasibleError as error:
            self.rank.report(["infeasible", list(error.experts), str(error)])
            raise
        return self.steps


def serve(rank: Rank, shape: dict[str, int], **settings: Any) -> int:
    """Serve as a rank of an instance, in a process of its own.

    Parameters
    ----------
    rank : Rank
    shape : dict
        Of :class:`~wavetank.serving.rank_failures.small_model.Shape`.
    **settings
        Of :class:`RankProgram`.
    """
    return RankProgram(rank, Shape(**shape), **settings).run()
