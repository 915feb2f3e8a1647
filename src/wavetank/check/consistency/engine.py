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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from wavetank.check.consistency.configurations import (
    ATOMIC,
    COMMITTED,
    CONFLICTS,
    MODELS,
    RT,
    RT_DELTA,
    RT_FROM_WRITES,
    RT_WRITES,
    SO,
    SO_WRITES,
    Configuration,
    implied,
    model,
    weaker,
)
from wavetank.check.consistency.dependencies import Anomaly, cycles, dependencies, forbids
from wavetank.check.consistency.events import Events, Read, events_of, mark_noisy
from wavetank.check.consistency.forks import Tree, fits_a_tree
from wavetank.check.consistency.linearize import Linearization, known_at, linearize
from wavetank.check.consistency.objects import OBJECTS, Sequential, by_key, frozen, object_of
from wavetank.check.consistency.orders import solve
from wavetank.check.consistency.registers import Sources, replayed
from wavetank.check.consistency.values import refuse_misfits
from wavetank.check.consistency.visibility import Clocks, ask, bits, constraints_of
from wavetank.check.consistency.zones import linearize_unlike
from wavetank.check.deadline import Allowance
from wavetank.check.report import Budget, Outcome
from wavetank.sim.history import History, Operation


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
    anomalies : tuple of Anomaly
        Of transactions: one example of each kind of anomaly that the model forbids and the history has.
    seconds : float
        Wall time taken.
    """

    model: str = ""
    outcome: Outcome
    says: str = ""
    by: str = ""
    order: tuple[int, ...] = ()
    sees: tuple[tuple[int, tuple[int, ...]], ...] = ()
    cycle: tuple[int, ...] = ()
    good: int | None = None
    good_until: float | None = None
    culprit: int | None = None
    anomalies: tuple[Anomaly, ...] = ()
    seconds: float = field(default=math.nan, compare=False)


_SHARES = 4.0
# Models that replaying decides, as first guesses for those that it does not, the strongest first; two have no name.
_GUESSES = (
    MODELS["strict-serializable"],
    replace(MODELS["sequential"], name="sequential, and seen within delta", respects=frozenset({SO, RT_DELTA})),
    replace(MODELS["sequential"], name="sequential, with writes in real time", respects=frozenset({SO, RT_WRITES})),
    *map(model, ("sequential", "delta-atomic", "prefix-linearizable", "serializable", "pram")),
)
# Measured at the peak: an alternative as tuples, and as a row of the table.
_BYTES_A_CONSTRAINT = 750
_BYTES_AN_EVENT, _SETS_AN_EVENT = 1500, 6
# Of the serialization graph: a transaction with its edges and points, and a step of it.
_BYTES_A_TRANSACTION, _BYTES_A_STEP = 1000, 600


BUDGET = Budget(memory_bytes=2**30)
"""Of a judgement where none is given."""


def judge(
    history: History,
    name: str,
    *,
    store: str = "auto",
    clocks: Clocks | None = None,
    k: int = 2,
    budget: Budget = BUDGET,
    prefix: bool = True,
) -> Judgement:
    """Decide whether a model allows a history.

    Parameters
    ----------
    history : History
    name : str
        One of :data:`~wavetank.check.consistency.configurations.MODELS`.
    store : str
        Kind of object (:data:`~wavetank.check.consistency.objects.OBJECTS`), or ``auto``.
    clocks : Clocks
        What delta and settled mean.
    k : int
        How many last writes ``k-linearizable`` allows to be read.
    budget : Budget
        Its memory is for what a search remembers.
    prefix : bool
        Whether to look for the longest good prefix of a violation.

    Raises
    ------
    UnknownNameError, BadValueError
        For a model or store that does not exist, or one that the history's operations or their values do not fit.
    """
    return _judge(_asked(history, store, clocks, k, budget), name, prefix=prefix)


def _asked(history: History, store: str, clocks: Clocks | None, k: int, budget: Budget) -> _Asked:
    allowance = Allowance(budget.seconds, budget.memory_bytes)
    kind = object_of(history, store)
    refuse_misfits(history, kind.name)
    return _Asked(history, kind, clocks or Clocks(), k, allowance)


def _judge(asked: _Asked, name: str, *, prefix: bool) -> Judgement:
    """Decide one model by its own method, or by what other models imply, and say what is wrong."""
    began_s = asked.budget.spent_s
    found = _known(asked, model(name))
    if found.outcome == "undecided":
        found = _derived(asked, name, found)
    elif prefix and found.outcome == "violated" and found.culprit is None:
        found = _with_prefix(asked, model(name), found)
    if asked.kind.name == "multi-register" and found.outcome == "violated":
        found = _with_anomalies(asked, model(name), found)
    return replace(found, model=name, seconds=asked.budget.spent_s - began_s)


@dataclass(frozen=True)
class _Asked:
    """A history and all that a question about it depends on but the model."""

    history: History
    kind: Sequential
    clocks: Clocks
    k: int
    budget: Allowance
    decided: dict[str, Judgement] = field(default_factory=dict)
    """Models that their own method decided, or never will."""
    named: dict[str, tuple[bool, list[Anomaly]]] = field(default_factory=dict)
    """Once they were looked for: whether the anomalies of the transactions are sure, and which there are."""


def _known(asked: _Asked, configuration: Configuration) -> Judgement:
    """Return what a model's own method says, asking it once."""
    name = configuration.name
    if name not in asked.decided:
        found = _by_anomalies(asked, configuration) or _direct(asked, configuration)
        if found.outcome == "undecided" and found.by != "none":
            return found
        asked.decided[name] = found
    return asked.decided[name]


def _direct(asked: _Asked, configuration: Configuration) -> Judgement:
    """Decide one model by the method that is its own, whatever others are asked."""
    kind = asked.kind
    if kind.name == "multi-register":
        # One object of all keys, each transaction one operation of it: linearizable is strictly serializable.
        if configuration.name == "linearizable" or configuration.value == "one-of-last-k":
            found = _decide(asked, MODELS["strict-serializable"])
            if configuration.value == "one-of-last-k" and found.outcome == "violated":
                return _not_kept(kind)
            return found
    elif configuration.name in ("linearizable", "strict-serializable"):
        return _linearizable(asked)
    elif configuration.value == "one-of-last-k":
        found = _linearizable(replace(asked, kind=_last_k(kind, asked.k)))
        return _not_kept(kind) if kind.name != "register" and found.outcome == "violated" else found
    return _decide(asked, configuration)


def _undecided(says: str, by: str = "none") -> Judgement:
    return Judgement(outcome="undecided", says=says, by=by)


def _not_kept(kind: Sequential) -> Judgement:
    return _undecided(f"the last k values of a {kind.name} are not kept")


def _derived(asked: _Asked, name: str, found: Judgement) -> Judgement:
    """Decide by other models what a model's own method leaves open: a stronger one holds, or a weaker one fails.

    It is the same whether the other models are asked as well or not.
    """
    follows = implied()
    stronger = sorted((other for other in MODELS if name in follows[other]), key=lambda other: -len(follows[other]))
    for other in (*stronger, *follows[name]):
        if not asked.budget():
            break
        answer = _known(replace(asked, budget=asked.budget.share(1 / 4)), MODELS[other])
        if answer.outcome == "holds" and name in follows[other]:
            return replace(answer, says=f"follows from {other}", by="implication")
        if answer.outcome == "violated" and other in follows[name]:
            return replace(answer, says=f"would imply {other}: {answer.says}", by="implication")
    return found


def _anomalies(asked: _Asked) -> tuple[bool, list[Anomaly]]:
    """Return whether the anomalies of the transactions are sure, and which there are; looked for once."""
    if "" not in asked.named:
        if _bytes_of_graph(asked.history) > asked.budget.memory_bytes:
            return False, []
        graph = dependencies(asked.history)
        found = graph.clear, [*graph.findings, *cycles(graph, asked.budget)]
        if not asked.budget():
            return found
        asked.named[""] = found
    return asked.named[""]


def _by_anomalies(asked: _Asked, configuration: Configuration) -> Judgement | None:
    """Decide by an anomaly that a model of snapshots forbids, before any order is searched for; None if there is none.

    Weaker models than those may allow what a name stands for where reads see no snapshot.
    """
    supplied = {COMMITTED, ATOMIC, CONFLICTS} <= configuration.supplied
    if asked.kind.name != "multi-register" or not supplied or configuration.value != "last" or configuration.per_key:
        return None
    if configuration.ordering not in ("prefix", "updates"):
        return None
    is_sure, found = _anomalies(asked)
    first = next((each for each in found if forbids(configuration, each.name)), None)
    if first is None or not is_sure:
        return None
    return _of_graph(first)


def _of_graph(anomaly: Anomaly) -> Judgement:
    says = f"{anomaly.name}: {anomaly.says}"
    return Judgement(outcome="violated", says=says, by="graph", cycle=anomaly.operations)


def _with_anomalies(asked: _Asked, configuration: Configuration, found: Judgement) -> Judgement:
    """Name what was violated as Elle names it, with the edges of the cycle."""
    named = [each for each in _anomalies(asked)[1] if forbids(configuration, each.name)]
    if not named:
        return found
    first = _of_graph(named[0])
    anomalies = tuple({each.name: each for each in named[::-1]}.values())[::-1]
    return replace(found, says=first.says, cycle=first.cycle, anomalies=anomalies)


def judge_all(
    history: History,
    names: Iterable[str] = MODELS,
    *,
    store: str = "auto",
    clocks: Clocks | None = None,
    k: int = 2,
    budget: Budget = BUDGET,
    prefix: bool = False,
    found: dict[str, Judgement] | None = None,
) -> dict[str, Judgement]:
    """Decide several models, each from the others' verdicts where the partial order allows.

    Parameters
    ----------
    history : History
    names : iterable of str
        Of :data:`~wavetank.check.consistency.configurations.MODELS`; all of them by default.
    store : str
        Kind of object (:data:`~wavetank.check.consistency.objects.OBJECTS`), or ``auto``.
    clocks : Clocks, optional
        What delta and settled mean, in the unit of the history's clock.
    k : int
        Number of last writes from which ``k-linearizable`` lets a read return.
    budget : Budget
        For all models together: wall time in seconds, and bytes for what a search remembers.
    prefix : bool
        Whether to look for the longest good prefix of each violation.
    found : dict, optional
        Model to judgement: filled while models are decided, for a caller that may interrupt.

    Returns
    -------
    dict
        Model to judgement, in the order of ``names``.

    Raises
    ------
    UnknownNameError, BadValueError
        For a model or store that does not exist, or one that the history's operations or their values do not fit.
    """
    names = list(names)
    follows = implied(names)
    found = {} if found is None else found
    asked = _asked(history, store, clocks, k, budget)

    def decide(name: str, part: float) -> None:
        judged = _judge(replace(asked, budget=asked.budget.share(part)), name, prefix=prefix)
        found[name] = judged
        for other in names:
            unsure = other not in found or found[other].outcome == "undecided"
            if unsure and judged.outcome == "holds" and other in follows[name]:
                says = f"follows from {name}"
            elif unsure and judged.outcome == "violated" and name in follows[other]:
                says = f"would imply {name}: {judged.says}"
            else:
                continue
            follower = replace(judged, model=other, says=says, by="implication", anomalies=(), seconds=0.0)
            if asked.kind.name == "multi-register" and judged.outcome == "violated":
                # A stronger model forbids more, and names it.
                follower = _with_anomalies(asked, model(other), follower)
            found[other] = follower

    # The strongest first: what it proves need not be asked again; then what is weak and fails condemns the rest.
    # Trees come last: growing them takes longest.
    by_strength = sorted(names, key=lambda name: -len(follows[name]))
    weakest_first = sorted(by_strength[:0:-1], key=lambda name: MODELS[name].ordering == "fork")
    for name in [*by_strength[:1], *weakest_first]:
        if name in found:
            continue
        # One hard model must not use up what the others need, and may use what others left.
        left = sum(1 for each in names if each not in found)
        decide(name, min(1.0, _SHARES / left))
    # What ran out of its share gets what is left.
    unsure = [name for name in weakest_first if found[name].outcome == "undecided"]
    for number, name in enumerate(unsure):
        if found[name].outcome == "undecided" and found[name].says.startswith("time") and asked.budget():
            del found[name]
            decide(name, 1 / (len(unsure) - number))
    return {name: found[name] for name in names}


def _linearizable(asked: _Asked) -> Judgement:
    """Decide key by key; the key that fails first ends the longest good prefix."""
    operations, kind, initial, budget = asked.history.operations, asked.kind, asked.history.initial, asked.budget
    worst: tuple[float, int, list[int]] | None = None
    unsure = ""
    points: list[tuple[float, int, int]] = []
    methods = set()
    # Small keys first: a failure among them shortens what is left to do.
    for numbers in sorted(by_key(operations).values(), key=len):
        if worst is not None:
            numbers = [number for number in numbers if operations[number].invoked < worst[0]]
        mine = [operations[number] for number in numbers]
        if worst is not None:
            mine = [known_at(operation, math.nextafter(worst[0], -math.inf)) for operation in mine]
        found: Linearization | None = linearize_unlike(kind, mine, initial)
        methods.add("zones" if found else "search")
        found = found or linearize(kind, mine, initial, in_budget=budget, memory_bytes=budget.memory_bytes)
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
            outcome="violated", says=says, by=by, order=tuple(good_order), good=good, good_until=until,
            culprit=culprit,
        )  # fmt: skip
    if unsure:
        return _undecided(unsure, by)
    order = tuple(number for _, _, number in sorted(points))
    return Judgement(outcome="holds", says="one order explains all", by=by, order=order)


def _words(operation: Operation) -> str:
    what = operation.action + (f" {operation.key}" if operation.key else "")
    value = f" {_brief(operation.value)}" if operation.value is not None else ""
    answer = f" -> {_brief(operation.result)}" if operation.result is not None or operation.action == "read" else ""
    return f"{operation.process}: {what}{value}{answer}"


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


def _decide(asked: _Asked, configuration: Configuration) -> Judgement:
    history, kind = asked.history, asked.kind
    if configuration.ordering == "fork":
        return _forked(asked, configuration)
    if kind.name == "multi-register" and configuration.ordering == "single" and not configuration.per_key:
        by_graph = _by_graph(history, configuration, asked.budget)
        if by_graph is not None:
            return by_graph
    unknown = next((at for at, one in enumerate(history.operations) if _is_unknown(one)), None)
    if unknown is not None:
        return _either(asked, unknown, configuration)
    found = events_of(history, kind)
    if found is None:
        return _undecided(
            f"what this {kind.name} answered does not show which writes were seen; ask for linearizable"
        )  # fmt: skip
    if configuration.value == "last-if-quiet":
        mark_noisy(history, found.events)
    committed = COMMITTED in configuration.supplied
    for what, number, says in found.anomalies:
        if committed or what not in ("G1a", "G1b"):
            name = f"{what}: " if kind.name == "multi-register" else ""
            says = f"{name}operation {number} ({_words(history.operations[number])}): {says}"
            return Judgement(outcome="violated", by="anomaly", cycle=(number,), says=says)
    if not found.ambiguous and not found.unclear:
        return _solved(asked, found, configuration)
    answer = replayed(history, found, configuration, asked.clocks, asked.budget)
    if answer is not None and (answer.outcome != "undecided" or not asked.budget()):
        says = "an order explains all" if answer.outcome == "holds" else answer.says
        order = tuple(found.events[at].number for at in answer.order)
        return Judgement(outcome=answer.outcome, says=says, by="replay", order=order)
    return _guessed(asked, found, configuration)


def _bytes_of_graph(history: History) -> int:
    steps = sum(len(operation.value or ()) for operation in history.operations)
    read = sum(
        len(step[2])
        for operation in history.operations
        if isinstance(operation.result, list)
        for step in operation.result
        if isinstance(step[2], list | tuple)
    )
    return _BYTES_A_TRANSACTION * len(history) + _BYTES_A_STEP * steps + 8 * read


def _by_graph(history: History, configuration: Configuration, budget: Allowance) -> Judgement | None:
    """Decide a model with one order for all by the serialization graph alone; None where that leaves it open."""
    if configuration.value != "last" or not {COMMITTED, ATOMIC, CONFLICTS} <= configuration.supplied:
        return None
    if configuration.respected - {SO, RT, SO_WRITES, RT_WRITES, RT_FROM_WRITES, RT_DELTA}:
        return None
    respects = configuration.respected & {SO, RT}
    if configuration.respected and not respects:
        # Of sessions or real time these know a part, which the graph does not separate.
        return None
    if _bytes_of_graph(history) > budget.memory_bytes:
        return _undecided(
            f"memory: {budget.memory_bytes} bytes are not enough for the graph of {len(history)} transactions"
        )
    graph = dependencies(history)
    if not graph.complete:
        return None
    if graph.findings:
        return _of_graph(graph.findings[0])
    order = graph.order(frozenset(respects))
    if order is not None:
        return Judgement(outcome="holds", says="an order explains all", by="graph", order=order)
    return Judgement(outcome="violated", says="operations would have to come in a circle", by="graph")


def _is_unknown(operation: Operation) -> bool:
    """Return whether a compare-and-set came back and nobody knows whether it found its value."""
    return operation.action == "cas" and operation.result is None and operation.returned is not None


def _either(asked: _Asked, unknown: int, configuration: Configuration) -> Judgement:
    """Decide with a compare-and-set that found its value, and then with one that did not."""
    found: list[Judgement] = []
    for result in (True, False):
        operations = list(asked.history.operations)
        operations[unknown] = msgspec.structs.replace(operations[unknown], result=result)
        history = msgspec.structs.replace(asked.history, operations=tuple(operations))
        tried = _decide(replace(asked, history=history), configuration)
        if tried.outcome == "holds":
            return tried
        found.append(tried)
    return max(found, key=lambda one: one.outcome == "undecided")


def _solved(asked: _Asked, found: Events, configuration: Configuration) -> Judgement:
    """Ask and answer one question; reads whose source is open are left out."""
    budget = asked.budget
    events = found.events
    keys = len({key for event in events for key in event.writes})
    # Sets of events are one bit an event: of each key its writers, of each event what it must see.
    sets = keys + (0 if configuration.ordering in ("single", "prefix") else _SETS_AN_EVENT * len(events))
    needed = sets * len(events) // 8 + _BYTES_AN_EVENT * len(events)
    if needed + _BYTES_A_CONSTRAINT * constraints_of(events, configuration) > budget.memory_bytes:
        return _undecided(f"memory: {budget.memory_bytes} bytes are not enough to ask how reads and writes are ordered")
    question = ask(events, configuration, asked.clocks, found.messages)
    if question.wrong is not None:
        number = events[question.wrong].number
        says = f"operation {number}: {question.says}"
        return Judgement(outcome="violated", says=says, by="closure", cycle=(number,))
    order: list[int] = []
    for constraints, nodes in question.parts:
        answer = solve(constraints, budget, budget.memory_bytes)
        if answer.outcome == "undecided":
            return _undecided(answer.says, "orders")
        if answer.outcome == "violated":
            cycle = tuple(events[nodes[at]].number for at in answer.cycle if nodes[at] >= 0)
            around = " before ".join(map(str, [*cycle, *cycle[:1]]))
            says = f"operations would have to come in a circle: {around}" if cycle else "no order is left"
            return Judgement(outcome="violated", says=says, by="orders", cycle=tuple(dict.fromkeys(cycle)))
        order += [events[nodes[at]].number for at in answer.order if nodes[at] >= 0]
    sees = tuple((events[at].number, tuple(events[w].number for w in bits(mask))) for at, mask in question.seen.items())
    return Judgement(outcome="holds", says="an order explains all", by="orders", order=tuple(order),
                     sees=sees if not order else ())  # fmt: skip


def _guessed(asked: _Asked, found: Events, configuration: Configuration) -> Judgement:
    """Try who may have written what was read, one read after another, as long as what is known so far fits."""
    events = found.events
    first = _first_guess(asked, found, configuration)
    if isinstance(first, Judgement):
        return first
    trials = [
        _Trial(events[at].reads[which], first.get((at, events[at].reads[which].key)))
        for at, which in sorted(found.ambiguous, key=lambda one: events[one[0]].returned)
    ]
    unclear = {
        at: _Trial(events[at].reads[which], first.get((at, events[at].reads[which].key))) for at, which in found.unclear
    }
    always = len(trials)
    at = 0
    last: Judgement | None = None
    unsure = dead_end = False

    def solved() -> Judgement:
        return _solved(asked, found, configuration)

    try:
        while True:
            if not asked.budget():
                return _undecided("time: the budget ran out while trying who wrote what was read", "trial of sources")
            if at == len(trials):
                # A compare-and-set that is seen must have happened, and must itself have seen what it asked for.
                used = {w for event in events for read in event.reads if not read.choices for w in read.chain}
                more = [unclear[w] for w in sorted(used & unclear.keys()) if unclear[w] not in trials]
                if not more:
                    return last or solved()
                trials += more
            if trials[at].next():
                last = solved()
                unsure |= last.outcome == "undecided"
                at += last.outcome == "holds"
                dead_end = last.outcome == "violated"
                continue
            # All sources of this read fail: back to the last one that has to do with it, or to the one before.
            back = at - 1
            # A lost swap is tried because it was seen, so that all who may have seen it are to blame.
            if back > 0 and at < always and dead_end and not trials[at].led_on:
                back = _last_to_blame(trials, at, solved)
            for trial in trials[back + 1 :]:
                trial.forget()
            del trials[max(always, back + 1) :]
            at, dead_end = back, False
            if at >= 0:
                trials[at].led_on = True
            if at < 0:
                outcome: Outcome = "undecided" if unsure else "violated"
                says = "no choice of who wrote what was read gives an order"
                return Judgement(outcome=outcome, says=says, by="trial of sources")
    finally:
        for trial in (*trials, *unclear.values()):
            trial.forget()


def _last_to_blame(trials: Sequence[_Trial], at: int, solved: Callable[[], Judgement]) -> int:
    """Return the last trial without which a source of a read would fit, -1 if none ever fits.

    What is known of fewer reads forbids less, so that halving finds for each source how many trials forbid it.
    """
    blamed = 0
    saved = [trial.known() for trial in trials[:at]]
    for source in trials[at].sources():
        trials[at].set(source)
        low, high = blamed, at
        while low < high:
            middle = (low + high) // 2
            for number, trial in enumerate(trials[:at]):
                trial.set(saved[number] if number < middle else None)
            if solved().outcome == "violated":
                high = middle
            else:
                low = middle + 1
        blamed = low
        if blamed == at:
            break
    for trial, known in zip(trials, saved, strict=False):
        trial.set(known)
    return blamed - 1


def _first_guess(asked: _Asked, found: Events, configuration: Configuration) -> Sources | Judgement:
    """Return whom a replay for another model names as writers; or an answer, if that model implies this one."""
    best: Sources = {}
    for other in _GUESSES:
        answer = replayed(asked.history, found, other, asked.clocks, asked.budget.share(1 / 8))
        if answer is None or answer.outcome != "holds":
            continue
        if weaker(configuration, other):
            order = tuple(found.events[at].number for at in answer.order)
            return Judgement(outcome="holds", says=f"follows from {other.name}", by="replay", order=order)
        best = best or answer.sources
    return best


class _Trial:
    """A read whose source is being tried."""

    def __init__(self, read: Read, first: int | None) -> None:
        self._read, self._open = read, read.choices
        # The guess goes first.
        self._choices = sorted(read.choices, key=lambda source: source != first)
        self._tried = 0
        self.led_on = False
        """Whether a source that was tried did fit, and failed later."""

    def next(self) -> bool:
        """Take the next source; False, and no source at all, when there is none."""
        if self._tried == len(self._choices):
            self.forget()
            return False
        self.set(self._choices[self._tried])
        self._tried += 1
        return True

    def sources(self) -> Sequence[int]:
        """Return all that may have written it."""
        return self._choices

    def known(self) -> int | None:
        """Return the source taken."""
        return None if self._read.choices else self._read.anchor

    def set(self, source: int | None) -> None:
        """Take a source, or none."""
        if source is None:
            self._read.chain, self._read.anchor, self._read.choices = (), -1, self._open
        else:
            self._read.chain, self._read.anchor, self._read.choices = ((source,) if source >= 0 else ()), source, ()

    def forget(self) -> None:
        """Leave the source open again."""
        self.set(None)
        self._tried, self.led_on = 0, False


def _forked(asked: _Asked, configuration: Configuration) -> Judgement:
    history = asked.history
    if history.messages:
        return _undecided("messages beside the store are not looked at when trees are grown")
    if SO in configuration.respects:
        # A trunk without branches is the cheapest tree.
        trunk = _decide(replace(asked, budget=asked.budget.share(1 / 8)), model("sequential"))
        if trunk.outcome == "holds":
            return replace(trunk, says="follows from sequential")
    outcome, tree = fits_a_tree(
        asked.kind, history.operations, history.initial, real_time="real-time" in configuration.respects,
        in_budget=asked.budget,
    )  # fmt: skip
    says = {
        "holds": "a tree explains all",
        "violated": "no tree has every process on one path",
        "undecided": "time: the budget ran out while growing trees",
    }[outcome]
    return Judgement(outcome=outcome, says=says, by="tree search", order=_flat(tree))


def _flat(tree: Tree | None) -> tuple[int, ...]:
    if tree is None:
        return ()
    trunk, branches = tree
    return (*trunk, *(at for branch in branches for at in _flat(branch)))


def _with_prefix(asked: _Asked, configuration: Configuration, found: Judgement) -> Judgement:
    """Find the longest good prefix by bisection: every prefix of a good history is good."""
    history = asked.history
    returns = sorted({operation.returned for operation in history.operations if operation.returned is not None})
    low, high = 0, len(returns)
    while low + 1 < high:
        middle = (low + high) // 2
        part = replace(asked, history=_until(history, returns[middle - 1]), decided={}, named={})
        tried = _by_anomalies(part, configuration) or _direct(part, configuration)
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
    cut = tuple(known_at(operation, until) for operation in history.operations if operation.invoked <= until)
    messages = tuple((one, two) for one, two in history.messages if two < len(cut) and cut[one].returned is not None)
    return msgspec.structs.replace(history, operations=cut, messages=messages, rule="", final=(), notes=())


def strongest(found: dict[str, Judgement]) -> tuple[str, ...]:
    """Return the models that hold and are implied by no other one that holds."""
    held: Sequence[str] = [name for name, each in found.items() if each.outcome == "holds"]
    follows = implied(held)
    return tuple(name for name in held if not any(name in follows[other] and other != name for other in held
                                                  if name not in follows or other not in follows[name]))  # fmt: skip
