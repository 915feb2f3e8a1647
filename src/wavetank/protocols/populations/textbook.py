"""Protocols written by hand: majorities, languages that depend on counts, and matching pairs in order.

They are the rivals of the compiled ones where they exist, and the loads on which simulators are timed.

Exact majority is that of D. Angluin, J. Aspnes, D. Eisenstat, Distributed Computing 21(2), 2008, and of M. Draief,
M. Vojnovic, SIAM J. Control Optim. 50(3), 2012.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wavetank.errors import BadValueError
from wavetank.protocols.populations.interface import PopulationProtocol, Rule
from wavetank.protocols.populations.syntactic_monoid import Automaton, SyntacticMonoid

if TYPE_CHECKING:
    from wavetank.protocols.populations.languages import Language


def majority() -> PopulationProtocol:
    """Return the protocol for "more a than b", on any number of agents.

    Opinions A and B cancel and leave a token T, which stands for a tie until an opinion that is left over removes it;
    a and b only repeat what they heard.
    """
    rules = _both_ways(
        Rule("A", "B", "T", "b", family="cancel"),
        Rule("A", "T", "A", "a", family="persuade"),
        Rule("B", "T", "B", "b", family="persuade"),
        Rule("A", "b", "A", "a", family="persuade"),
        Rule("B", "a", "B", "b", family="persuade"),
        Rule("T", "a", "T", "b", family="persuade"),
    )
    return PopulationProtocol.from_rules(
        "majority", rules=rules, initial={"a": "A", "b": "B"}, outputs={"A": 1, "B": 0, "T": 0, "a": 1, "b": 0}
    )


def approximate_majority() -> PopulationProtocol:
    """Return the three-state protocol that is fast and wrong with a small probability when the counts are close."""
    rules = _both_ways(
        Rule("a", "b", "blank", "blank", family="cancel"),
        Rule("a", "blank", "a", "a", family="persuade"),
        Rule("b", "blank", "b", "b", family="persuade"),
    )
    return PopulationProtocol.from_rules(
        "approximate majority", rules=rules, initial={"a": "a", "b": "b"}, outputs={"a": 1, "b": 0, "blank": 0}
    )


def rock_paper_scissors() -> PopulationProtocol:
    """Return the three-state oscillator, in which two thirds of all meetings change something for long."""
    rules = _both_ways(Rule("a", "b", "a", "a"), Rule("b", "c", "b", "b"), Rule("c", "a", "c", "c"))
    return PopulationProtocol.from_rules(
        "rock paper scissors",
        rules=rules,
        initial={"a": "a", "b": "b", "c": "c"},
        outputs={"a": 1, "b": 0, "c": 0},
    )


def counting(automaton: Automaton, name: str) -> PopulationProtocol:
    """Return the unordered protocol of a language that depends on the number of each letter alone.

    Agents hold elements of the syntactic monoid; two holders multiply what they hold and one of them stops holding.
    The last holder informs the others.

    Raises
    ------
    BadValueError
        If the order of letters matters.
    """
    monoid = SyntacticMonoid.of(automaton)
    if not monoid.is_commutative:
        raise BadValueError(
            "The order of letters matters in this language.",
            given=name,
            hint="Use RankerCompiler or SuccessorCompiler.",
        )
    accepted = [int(element in monoid.accepting) for element in range(len(monoid))]

    def meet(first: tuple[str, int], second: tuple[str, int], _: int) -> tuple[object, object, str] | None:
        if first[0] == "holds" and second[0] == "holds":
            product = int(monoid.product[first[1], second[1]])
            return ("holds", product), ("informed", accepted[product]), "multiply"
        if first[0] == "holds" and second[0] == "informed":
            return first, ("informed", accepted[first[1]]), "inform"
        if first[0] == "informed" and second[0] == "holds":
            return ("informed", accepted[second[1]]), second, "inform"
        return None

    return PopulationProtocol.from_function(
        name,
        initial={letter: ("holds", element) for letter, element in zip(monoid.letters, monoid.generators, strict=True)},
        output=lambda state: accepted[state[1]] if state[0] == "holds" else state[1],
        meet=meet,
        ordered=False,
        label=lambda state: f"{state[0]} {state[1]}",
    )


def matched_halves() -> PopulationProtocol:
    """Return the PP[<] protocol for a^n b^n, n >= 1: as many a as b, and all a before all b.

    An a and a later b match and leave a token each.  Matched agents say yes once they met a token and no once they met
    an unmatched letter, which also takes tokens away: as many tokens are left as are needed exactly if all are matched.
    An a that stands after a b makes everybody say no.  Beyond immediate observation: a match changes both agents.
    """
    letters = {"a": ("a", "a token", "a yes", "a no"), "b": ("b", "b token", "b yes", "b no")}
    rules = list(_in_order("a", "b", "a token", "b token", "match"))
    for before in letters["b"]:
        for after in letters["a"]:
            rules.append(Rule(before, after, "disorder", "disorder", "<", "disorder"))
            rules.append(Rule(after, before, "disorder", "disorder", ">", "disorder"))
    matched = [state for each in letters.values() for state in each[1:]]
    for state in ("a", "b", *matched):
        rules += _both_ways(Rule("disorder", state, "disorder", "disorder", family="disorder"))
    for unmatched in ("a", "b"):
        for state in matched:
            if not state.endswith("no"):
                rules += _in_order(unmatched, state, unmatched, f"{state[0]} no", "doubt")
    for token in ("a token", "b token"):
        for state in matched:
            if state.endswith("no"):
                rules += _in_order(token, state, token, f"{state[0]} yes", "confirm")
    outputs = {state: int(state.endswith(("token", "yes"))) for each in letters.values() for state in each}
    return PopulationProtocol.from_rules(
        "matched halves", rules=rules, initial={"a": "a", "b": "b"}, outputs={**outputs, "disorder": 0}
    )


@dataclass(frozen=True, kw_only=True)
class PairingProtocol:
    """The hand-written protocol that compares ranks and changes both agents of a meeting: a^n b^n."""

    def protocol(self, language: Language) -> PopulationProtocol | None:
        """Return it for that language, None for all others."""
        return matched_halves() if language.kind == "halves" else None


@dataclass(frozen=True, kw_only=True)
class CountingProtocol:
    """Protocols without ranks: majority, and regular languages that depend on the number of each letter alone."""

    def protocol(self, language: Language) -> PopulationProtocol | None:
        """Return the protocol, None where the order of letters matters."""
        if language.kind == "majority":
            return majority()
        if language.automaton is None or language.monoid is None or not language.monoid.is_commutative:
            return None
        return counting(language.automaton, language.name)


def _in_order(first: str, second: str, new_first: str, new_second: str, family: str) -> Iterable[Rule]:
    """Yield a rule in both roles, for an a and a b only where the a stands before the b."""
    guard = "" if first[0] == second[0] else "<" if first[0] == "a" else ">"
    yield Rule(first, second, new_first, new_second, guard, family)
    yield Rule(second, first, new_second, new_first, {"": "", "<": ">", ">": "<"}[guard], family)


def _both_ways(*rules: Rule) -> Iterable[Rule]:
    """Yield the rules with roles swapped as well."""
    for rule in rules:
        yield rule
        if rule.initiator != rule.responder:
            yield Rule(rule.responder, rule.initiator, rule.new_responder, rule.new_initiator, rule.guard, rule.family)
