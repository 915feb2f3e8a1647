"""Light Cone Consistency as an engine: one history, any model, one answer with its evidence.

A model is a point with four coordinates (closure, ordering, timeliness, value).  The engine turns the point into a
question about orders of events and answers it: ``holds`` with an order, ``violated`` with the longest prefix that is
still good and the operation that ends it, or ``undecided`` when the budget ran out.

Source: R. Landers, K. Kramer, "Light Cone Consistency: Toward a Unified Theory of Consistency in Message-Passing
Systems", arXiv 2605.09114, 2026.

Differs from the source:
1. The paper is theory; that histories decide, with values instead of a recorded causal graph, is ours.
2. Eventual visibility means nothing for a finite history; it is held against reads long after the last write, if
   ``settled_s`` says how long.
3. Linearizability goes to a search of its own, key by key, where the general question would be slower.
4. Verdicts spread along the partial order of models, so that judging all of them costs little more than a few.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from wavetank.protocols.consistency.configurations import COMMITTED, MODELS, Configuration, implied, model
from wavetank.protocols.consistency.events import Event, Events, Read, events_of
from wavetank.protocols.consistency.forks import Tree, fits_a_tree
from wavetank.protocols.consistency.linearize import Linearization, known_at, linearize
from wavetank.protocols.consistency.objects import OBJECTS, Sequential, frozen, object_of
from wavetank.protocols.consistency.orders import solve
from wavetank.protocols.consistency.visibility import Clocks, Question, ask, bits, constraints_of
from wavetank.protocols.consistency.zones import linearize_unlike
from wavetank.protocols.history import History, Operation

Outcome = Literal["holds", "violated", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a judgement may use.

    Parameters
    ----------
    seconds : float
        Wall time.
    memory_bytes : int
        For what a search remembers.
    """

    seconds: float = 60.0
    memory_bytes: int = 2**30


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What was found about one history and one model.

    Parameters
    ----------
    model : str
    outcome : str
        ``holds``, ``violated`` or ``undecided``.
    says : str
        One line.
    by : str
        The method that decided.
    order : tuple of int
        Witness: operations in an order that explains them; of one process after another where each has its own.
    sees : tuple of (int, tuple of int)
        Witness of a model without an order: operations and the writes each must have seen.
    cycle : tuple of int
        Operations each of which would have to come before the next.
    good : int or None
        How many operations returned within the longest good prefix; None when it was not looked for.
    good_until : float or None
        The return that ends the longest good prefix, in the history's clock.
    culprit : int or None
        The operation of that return.
    seconds : float
        Wall time taken.
    """

    model: str
    outcome: Outcome
    says: str = ""
    by: str = ""
    order: tuple[int, ...] = ()
    sees: tuple[tuple[int, tuple[int, ...]], ...] = ()
    cycle: tuple[int, ...] = ()
    good: int | None = None
    good_until: float | None = None
    culprit: int | None = None
    seconds: float = field(default=math.nan, compare=False)


_SHARES = 4.0
# Measured at the peak: an alternative as tuples, and as a row of the table.
_BYTES_A_CONSTRAINT = 750


class _Budget:
    """Wall time left."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._clock, self._until = clock, clock() + limits.seconds
        self.memory_bytes = limits.memory_bytes

    def left(self) -> float:
        return max(0.0, self._until - self._clock())

    def __call__(self) -> bool:
        return self._clock() < self._until


def judge(
    history: History,
    name: str,
    *,
    store: str = "auto",
    clocks: Clocks | None = None,
    k: int = 2,
    limits: Limits | None = None,
    prefix: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Judgement:
    """Decide whether a model allows a history.

    Parameters
    ----------
    history : History
    name : str
        One of :data:`~wavetank.protocols.consistency.configurations.MODELS`.
    store : str
        Kind of object (:data:`~wavetank.protocols.consistency.objects.OBJECTS`), or ``auto``.
    clocks : Clocks
        What delta and settled mean.
    k : int
        How many last writes ``k-linearizable`` allows to be read.
    limits : Limits
    prefix : bool
        Whether to look for the longest good prefix of a violation.
    clock : callable
        Gives seconds; for the budget.

    Raises
    ------
    UnknownNameError, BadValueError
        For a model or store that does not exist, or one that the history's operations do not fit.
    """
    configuration, kind = model(name), object_of(history, store)
    began = clock()
    budget = _Budget(limits or Limits(), clock)
    clocks = clocks or Clocks()
    if name == "linearizable" or (name == "strict-serializable" and kind.name != "multi-register"):
        found = _linearizable(history, kind, budget)
    elif configuration.value == "one-of-last-k":
        found = _linearizable(history, _last_k(kind, k), budget)
        if kind.name != "register" and found.outcome == "violated":
            found = Judgement(
                model="", outcome="undecided", by="none", says=f"the last k values of a {kind.name} are not kept"
            )
    else:
        found = _decide(history, configuration, kind, clocks, budget)
        if prefix and found.outcome == "violated":
            found = _with_prefix(history, configuration, kind, clocks, budget, found)
    return replace(found, model=name, seconds=clock() - began)


def judge_all(
    history: History,
    names: Iterable[str] = MODELS,
    *,
    store: str = "auto",
    clocks: Clocks | None = None,
    k: int = 2,
    limits: Limits | None = None,
    prefix: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Judgement]:
    """Decide several models, each from the others' verdicts where the partial order allows.

    Parameters and errors are those of :func:`judge`; the limits are for all of them together.

    Returns
    -------
    dict
        Model to judgement, in the order of ``names``.
    """
    names = list(names)
    follows = implied(names)
    limits = limits or Limits()
    until = clock() + limits.seconds
    found: dict[str, Judgement] = {}
    # The strongest first: what it proves need not be asked again; then what is weak and fails condemns the rest.
    # Trees come last: growing them takes longest.
    by_strength = sorted(names, key=lambda name: -len(follows[name]))
    weakest_first = sorted(by_strength[:0:-1], key=lambda name: MODELS[name].ordering == "fork")
    for name in [*by_strength[:1], *weakest_first]:
        if name in found:
            continue
        # One hard model must not use up what the others need, and may use what others left.
        left = sum(1 for each in names if each not in found)
        seconds = max(0.0, until - clock()) * min(1.0, _SHARES / left)
        share = Limits(seconds=seconds, memory_bytes=limits.memory_bytes)
        judged = judge(history, name, store=store, clocks=clocks, k=k, limits=share, prefix=prefix, clock=clock)
        found[name] = judged
        if judged.outcome == "holds":
            for weak in follows[name]:
                if weak not in found:
                    found[weak] = replace(
                        judged, model=weak, says=f"follows from {name}", by="implication", seconds=0.0
                    )
        elif judged.outcome == "violated":
            for strong in names:
                if name in follows[strong] and found.get(strong, judged).outcome != "violated" and strong not in found:
                    found[strong] = replace(
                        judged, model=strong, says=f"would imply {name}: {judged.says}", by="implication", seconds=0.0
                    )
    return {name: found[name] for name in names}


def _linearizable(history: History, kind: Sequential, budget: _Budget) -> Judgement:
    """Decide key by key; the key that fails first ends the longest good prefix."""
    operations = history.operations
    by_key: dict[str, list[int]] = {}
    for number, operation in enumerate(operations):
        by_key.setdefault(operation.key, []).append(number)
    worst: tuple[float, int, list[int]] | None = None
    unsure = ""
    points: list[tuple[float, int, int]] = []
    methods = set()
    # Small keys first: a failure among them shortens what is left to do.
    for numbers in sorted(by_key.values(), key=len):
        if worst is not None:
            numbers = [number for number in numbers if operations[number].invoked < worst[0]]
        mine = [operations[number] for number in numbers]
        if worst is not None:
            mine = [known_at(operation, math.nextafter(worst[0], -math.inf)) for operation in mine]
        found: Linearization | None = linearize_unlike(kind, mine, history.initial)
        methods.add("zones" if found else "search")
        found = found or linearize(kind, mine, history.initial, seconds=budget.left(), memory_bytes=budget.memory_bytes)
        if found.outcome == "undecided":
            unsure = found.says
        elif found.outcome == "violated" and found.culprit is not None:
            culprit = numbers[found.culprit]
            worst = (operations[culprit].returned or math.inf, culprit, [numbers[at] for at in found.order])
        at_time = -math.inf
        for place, at in enumerate(found.order):
            at_time = max(at_time, mine[at].invoked)
            points.append((at_time, place, numbers[at]))
    by = " and ".join(sorted(methods)) or "no operations"
    if worst is not None:
        until, culprit, good_order = worst
        good = sum(1 for operation in operations if operation.returned is not None and operation.returned < until)
        says = f"operation {culprit} ({_words(operations[culprit])}) fits into no order"
        return Judgement(
            model="", outcome="violated", says=says, by=by, order=tuple(good_order), good=good, good_until=until,
            culprit=culprit,
        )  # fmt: skip
    if unsure:
        return Judgement(model="", outcome="undecided", says=unsure, by=by)
    order = tuple(number for _, _, number in sorted(points))
    return Judgement(model="", outcome="holds", says="one order explains all", by=by, order=order)


def _words(operation: Operation) -> str:
    what = operation.action + (f" {operation.key}" if operation.key else "")
    told = f" {_brief(operation.value)}" if operation.value is not None else ""
    answer = f" -> {_brief(operation.result)}" if operation.result is not None or operation.action == "read" else ""
    return f"{operation.process}: {what}{told}{answer}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"...{text[-57:]}"


def _last_k(kind: Sequential, k: int) -> Sequential:
    """Return a register whose reads may see any of the last k values."""
    if kind.name != "register":
        return kind

    def step(state: Any, operation: Operation) -> Any:
        if operation.action == "read":
            return state if operation.returned is None or frozen(operation.result) in state else None
        following: Any = OBJECTS["register"].step((state[-1],), operation)
        if following is None or (operation.action == "cas" and following == (state[-1],)):
            return None if following is None else state
        return (*state, following[0])[-k:]

    return Sequential("last-k", kind.actions, lambda initial: (frozen(initial),), step)


def _decide(
    history: History, configuration: Configuration, kind: Sequential, clocks: Clocks, budget: _Budget
) -> Judgement:
    if configuration.ordering == "fork":
        return _forked(history, configuration, kind, budget)
    found = events_of(history, kind)
    if found is None:
        return Judgement(
            model="", outcome="undecided", by="none",
            says=f"what this {kind.name} answered does not tell which writes were seen; ask for linearizable",
        )  # fmt: skip
    committed = COMMITTED in configuration.supplied
    for what, number, says in found.anomalies:
        if committed or what in ("thin-air", "internal"):
            return Judgement(
                model="", outcome="violated", by="anomaly",
                says=f"operation {number} ({_words(history.operations[number])}): {says}",
            )  # fmt: skip
    if not found.ambiguous and not found.unclear:
        return _solved(found, configuration, clocks, budget)
    return _guessed(found, configuration, clocks, budget)


def _solved(found: Events, configuration: Configuration, clocks: Clocks, budget: _Budget) -> Judgement:
    """Ask and answer one question; reads whose source is open are left out."""
    events = found.events
    if _BYTES_A_CONSTRAINT * constraints_of(events, configuration) > budget.memory_bytes:
        says = f"memory: {budget.memory_bytes} bytes are not enough to ask how reads and writes are ordered"
        return Judgement(model="", outcome="undecided", says=says, by="none")
    question: Question = ask(events, configuration, clocks, found.messages)
    if question.wrong is not None:
        number = events[question.wrong].number
        return Judgement(model="", outcome="violated", says=f"operation {number}: {question.says}", by="closure",
                         cycle=(number,))  # fmt: skip
    order: list[int] = []
    for constraints, nodes in question.parts:
        answer = solve(constraints, budget, budget.memory_bytes)
        if answer.outcome == "undecided":
            return Judgement(model="", outcome="undecided", says=answer.says, by="orders")
        if answer.outcome == "violated":
            cycle = tuple(events[nodes[at]].number for at in answer.cycle if nodes[at] >= 0)
            around = " before ".join(map(str, [*cycle, *cycle[:1]]))
            says = f"operations would have to come in a circle: {around}" if cycle else "no order is left"
            return Judgement(model="", outcome="violated", says=says, by="orders", cycle=tuple(dict.fromkeys(cycle)))
        order += [events[nodes[at]].number for at in answer.order if nodes[at] >= 0]
    sees = tuple((events[at].number, tuple(events[w].number for w in bits(mask))) for at, mask in question.seen.items())
    return Judgement(model="", outcome="holds", says="an order explains all", by="orders",
                     order=tuple(order), sees=sees if not order else ())  # fmt: skip


def _guessed(found: Events, configuration: Configuration, clocks: Clocks, budget: _Budget) -> Judgement:
    """Try who may have written what was read, one read after another, as long as what is known so far fits."""
    events = found.events
    trials = [_Trial(events[at].reads[which]) for at, which in sorted(found.ambiguous, key=_by_return(events))]
    unclear = {at: _Trial(events[at].reads[which]) for at, which in found.unclear}
    always = len(trials)
    at = 0
    last: Judgement | None = None
    unsure = False
    try:
        while True:
            if not budget():
                return Judgement(
                    model="", outcome="undecided", by="trial of sources",
                    says="time: the budget ran out while trying who wrote what was read",
                )  # fmt: skip
            if at == len(trials):
                # Whoever is seen must have happened, and must itself have seen what it asked for.
                used = {w for event in events for read in event.reads if not read.choices for w in read.chain}
                more = [unclear[w] for w in sorted(used & unclear.keys()) if unclear[w] not in trials]
                if not more:
                    return last or _solved(found, configuration, clocks, budget)
                trials += more
            if trials[at].next():
                last = _solved(found, configuration, clocks, budget)
                unsure |= last.outcome == "undecided"
                at += last.outcome == "holds"
                continue
            # All sources of this read fail: back to the one before.
            at -= 1
            for trial in trials[max(always, at + 1) :]:
                trial.forget()
            del trials[max(always, at + 1) :]
            if at < 0:
                outcome: Outcome = "undecided" if unsure else "violated"
                says = "no choice of who wrote what was read gives an order"
                return Judgement(model="", outcome=outcome, says=says, by="trial of sources")
    finally:
        for trial in (*trials, *unclear.values()):
            trial.forget()


def _by_return(events: Sequence[Event]) -> Callable[[tuple[int, int]], float]:
    return lambda one: events[one[0]].returned


class _Trial:
    """A read whose source is being tried."""

    def __init__(self, read: Read) -> None:
        self._read, self._choices = read, read.choices
        self._tried = 0

    def next(self) -> bool:
        """Take the next source; False, and no source at all, when there is none."""
        if self._tried == len(self._choices):
            self.forget()
            return False
        source = self._choices[self._tried]
        self._tried += 1
        self._read.chain, self._read.anchor, self._read.choices = ((source,) if source >= 0 else ()), source, ()
        return True

    def forget(self) -> None:
        """Leave the source open again."""
        self._read.chain, self._read.anchor, self._read.choices, self._tried = (), -1, self._choices, 0


def _forked(history: History, configuration: Configuration, kind: Sequential, budget: _Budget) -> Judgement:
    if history.messages:
        says = "messages beside the store are not looked at when trees are grown"
        return Judgement(model="", outcome="undecided", by="none", says=says)
    outcome, tree = fits_a_tree(
        kind, history.operations, history.initial, real_time="real-time" in configuration.respects, in_budget=budget
    )
    says = {
        "holds": "a tree explains all",
        "violated": "no tree has every process on one path",
        "undecided": "time: the budget ran out while growing trees",
    }[outcome]
    return Judgement(model="", outcome=outcome, says=says, by="tree search", order=_flat(tree))


def _flat(tree: Tree | None) -> tuple[int, ...]:
    if tree is None:
        return ()
    trunk, branches = tree
    return (*trunk, *(at for branch in branches for at in _flat(branch)))


def _with_prefix(
    history: History, configuration: Configuration, kind: Sequential, clocks: Clocks, budget: _Budget, found: Judgement
) -> Judgement:
    """Find the longest good prefix by bisection: every prefix of a good history is good."""
    returns = sorted({operation.returned for operation in history.operations if operation.returned is not None})
    low, high = 0, len(returns)
    while low + 1 < high:
        middle = (low + high) // 2
        tried = _decide(_until(history, returns[middle - 1]), configuration, kind, clocks, budget)
        if tried.outcome == "undecided":
            return found
        if tried.outcome == "holds":
            low = middle
        else:
            high, found = middle, tried
    ends = returns[high - 1]
    culprit = next(at for at, operation in enumerate(history.operations) if operation.returned == ends)
    good = sum(1 for operation in history.operations if operation.returned is not None and operation.returned < ends)
    return replace(found, good=good, good_until=ends, culprit=culprit)


def _until(history: History, until: float) -> History:
    """Return what was known right after a time."""
    cut: list[Operation] = []
    for operation in history.operations:
        if operation.invoked <= until:
            cut.append(known_at(operation, until))
    known = [operation.returned is not None for operation in cut]
    messages = tuple((one, two) for one, two in history.messages if two < len(cut) and known[one])
    return History(
        operations=tuple(cut), messages=messages, store=history.store, initial=history.initial, clock=history.clock
    )


def strongest(found: dict[str, Judgement]) -> tuple[str, ...]:
    """Return the models that hold and are implied by no other one that holds."""
    held: Sequence[str] = [name for name, each in found.items() if each.outcome == "holds"]
    follows = implied(held)
    return tuple(name for name in held if not any(name in follows[other] and other != name for other in held
                                                  if name not in follows or other not in follows[name]))  # fmt: skip
