"""Refinement types: whether the conditions on payloads make sense, and whether a protocol can always go on under them.

Checked only in files that turn them on with the pragma ``RefinementTypes``.  Types and knowledge (who has seen which
value) are checked here; what needs arithmetic is put to the solver z3.

Source: F. Zhou, F. Ferreira, R. Hu, R. Neykova, N. Yoshida, "Statically Verified Refinements for Multiparty Protocols",
OOPSLA 2020, as nuScr implements it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

from wavetank.errors import missing_extra, nearest_of
from wavetank.protocols.sessions.global_types import Communication, End, GlobalType, Head, Jump
from wavetank.protocols.sessions.syntax import Expression, IllFormedError, Module, Payload, Place

MOST_STEPS = 20_000
_SOLVER_LIMIT_MS = 5_000
_OPERATORS = {
    "&&": ("bool", "bool"),
    "||": ("bool", "bool"),
    "<": ("int", "bool"),
    ">": ("int", "bool"),
    "<=": ("int", "bool"),
    ">=": ("int", "bool"),
    "+": ("int", "int"),
    "-": ("int", "int"),
}


@dataclass(frozen=True)
class _Known:
    """What holds at a place: types of values, the solver's terms for them, who knows them, what is assumed.

    A value that is sent again under the same name gets a new term; ``sorts`` keeps the types of all of them.
    """

    types: dict[str, str] = field(default_factory=dict)
    terms: dict[str, str] = field(default_factory=dict)
    sorts: dict[str, str] = field(default_factory=dict)
    seen_by: dict[str, frozenset[str]] = field(default_factory=dict)
    assumed: tuple[tuple[Expression, tuple[tuple[str, str], ...]], ...] = ()

    def with_value(self, payload: Payload, roles: frozenset[str]) -> _Known:
        term = f"{payload.name}#{len(self.sorts)}"
        terms = {**self.terms, payload.name: term}
        assumed = self.assumed
        if payload.refinement is not None:
            assumed = (*assumed, (payload.refinement, tuple(terms.items())))
        return replace(
            self,
            types={**self.types, payload.name: payload.type},
            terms=terms,
            sorts={**self.sorts, term: payload.type},
            seen_by={**self.seen_by, payload.name: roles},
            assumed=assumed,
        )


def check_refinements(protocol: GlobalType, module: Module) -> None:
    """Check the refinements of a protocol; nothing is done in a file that does not turn them on.

    Raises
    ------
    IllFormedError
        For a condition that is not one, an unknown value, a role that cannot judge, or a protocol that may get stuck.
    MissingExtraError
        When z3 is needed and not installed.
    """
    if module.has_refinements:
        _Refinements(protocol, module).check()


class _Refinements:
    def __init__(self, protocol: GlobalType, module: Module) -> None:
        self.protocol = protocol
        self.pragmas = frozenset(module.pragmas)
        self.steps = 0

    def refuse(self, problem: str, place: Place, **parts: object) -> IllFormedError:
        return IllFormedError(problem, rule="refinement", where=self.protocol.where(place), **parts)

    def check(self) -> None:
        seen: set[tuple[int, tuple[tuple[str, str], ...]]] = set()
        waiting = [(self.protocol.start, _Known())]
        while waiting:
            number, known = waiting.pop()
            key = (number, tuple(sorted(known.types.items())))
            node = self.protocol.nodes[number]
            if isinstance(node, Jump):
                self.go_round(node, known)
            if key in seen:
                continue
            seen.add(key)
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise self.refuse(
                    "The refinements need too many steps to check.", self.protocol.place, allowed=f"{MOST_STEPS} steps"
                )
            if isinstance(node, Communication):
                known = self.message(node, known)
            elif isinstance(node, Head):
                known = self.enter(node, known)
            followers = self.protocol.successors(number)
            if isinstance(node, Communication) or len(followers) > 1:
                self.goes_on(number, known)
            waiting += [(follower, known) for follower in followers]

    def message(self, node: Communication, known: _Known) -> _Known:
        for payload in node.payload:
            inner = known
            if payload.name:
                inner = known.with_value(payload, frozenset({node.sender, node.receiver}))
            if payload.refinement is not None:
                self.is_type(payload.refinement, "bool", inner, "a condition")
                for pragma, role in (
                    ("SenderValidateRefinements", node.sender),
                    ("ReceiverValidateRefinements", node.receiver),
                ):
                    if pragma in self.pragmas:
                        self.can_judge(payload.refinement, role, inner)
            known = inner
        if "ValidateRefinementSatisfiability" in self.pragmas and not self.possible(known, ()):
            raise self.refuse("No value fulfils the conditions up to here.", node.place, hint="weaken one of them")
        return known

    def enter(self, node: Head, known: _Known) -> _Known:
        for variable in node.variables:
            payload, roles = replace(variable.payload, name=variable.name), frozenset(variable.roles)
            self.is_type(variable.start, payload.type, known, f"the start of {variable.name!r}")
            if payload.refinement is not None:
                inner = known.with_value(replace(payload, refinement=None), roles)
                refinement = _renamed(payload.refinement, variable.payload.name or variable.name, variable.name)
                self.is_type(refinement, "bool", inner, "a condition")
                self.implied(variable.start, refinement, variable.name, known)
                payload = replace(payload, refinement=refinement)
            known = known.with_value(payload, roles)
        return known

    def go_round(self, node: Jump, known: _Known) -> None:
        head = self.protocol.nodes[node.target]
        variables = head.variables if isinstance(head, Head) else ()
        if len(node.values) != len(variables):
            raise self.refuse(
                f"The loop {node.name!r} has {len(variables)} variables.", node.place, given=len(node.values)
            )
        for variable, value in zip(variables, node.values, strict=True):
            self.is_type(value, variable.payload.type, known, f"the next value of {variable.name!r}")
            for role in variable.roles:
                self.can_judge(value, role, known)
            if variable.payload.refinement is not None:
                refinement = _renamed(variable.payload.refinement, variable.payload.name, variable.name)
                self.implied(value, refinement, variable.name, known)

    # Types and knowledge

    def is_type(self, expression: Expression, wanted: str, known: _Known, what: str) -> None:
        found = self.type_of(expression, known)
        if found != wanted:
            raise self.refuse(f"This is {found}; {what} must be {wanted}.", expression.place)

    def type_of(self, expression: Expression, known: _Known) -> str:
        kind, parts = expression.kind, expression.parts
        if kind in ("int", "bool", "string"):
            return kind
        if kind == "name":
            name = str(expression.value)
            if name not in known.types:
                raise self.refuse(
                    f"No value named {name!r} was sent before this.",
                    expression.place,
                    allowed=list(known.types) or None,
                    nearest=nearest_of(name, known.types),
                )
            return known.types[name]
        if kind in ("not", "neg", "len"):
            takes, gives = {"not": ("bool", "bool"), "neg": ("int", "int"), "len": ("string", "int")}[kind]
            self.is_type(parts[0], takes, known, f"what follows {kind!r}")
            return gives
        if kind in ("=", "<>"):
            self.is_type(parts[1], self.type_of(parts[0], known), known, "the right side of a comparison")
            return "bool"
        takes, gives = _OPERATORS[kind]
        for part in parts:
            self.is_type(part, takes, known, f"a side of {kind!r}")
        return gives

    def can_judge(self, expression: Expression, role: str, known: _Known) -> None:
        if expression.kind == "name" and role not in known.seen_by.get(str(expression.value), frozenset()):
            raise self.refuse(f"{role!r} does not know the value of {str(expression.value)!r}.", expression.place)
        for part in expression.parts:
            self.can_judge(part, role, known)

    # What needs the solver

    def goes_on(self, number: int, known: _Known) -> None:
        if "ValidateRefinementProgress" not in self.pragmas:
            return
        node = self.protocol.nodes[number]
        firsts = [first for follower in self.protocol.successors(number) for first in self.protocol.firsts(follower)]
        if not firsts or any(isinstance(first, End) for first in firsts):
            return
        blocked = [first for first in firsts if isinstance(first, Communication)]
        if self.possible(known, tuple(blocked)):
            place = blocked[0].place if isinstance(node, End) else getattr(node, "place", self.protocol.place)
            raise self.refuse(
                "The protocol may get stuck here: there are values under which no message can follow.",
                place,
                hint="weaken the conditions of what follows, or add a branch",
            )

    def implied(self, value: Expression, refinement: Expression, name: str, known: _Known) -> None:
        solver, context = self.solver(known)
        term = context.term(value, known.terms)
        inner = {**known.terms, name: f"{name}#new"}
        fresh = context.constant(f"{name}#new", context.sort_of(term))
        solver.add(fresh == term, context.z3.Not(context.term(refinement, inner)))
        if solver.check() != context.z3.unsat:
            raise self.refuse(f"This value need not fulfil the condition on {name!r}.", value.place)

    def possible(self, known: _Known, blocked: tuple[Communication, ...]) -> bool:
        """Return whether some values fulfil all that is assumed while none of ``blocked`` can be sent."""
        solver, context = self.solver(known)
        for message in blocked:
            terms, bound, conditions = dict(known.terms), [], []
            for payload in message.payload:
                if not payload.name:
                    continue
                terms[payload.name] = f"{payload.name}#next"
                bound.append(context.constant(f"{payload.name}#next", payload.type))
                if payload.refinement is not None:
                    conditions.append(context.term(payload.refinement, terms))
            condition = context.z3.And(*conditions)
            solver.add(context.z3.Not(context.z3.Exists(bound, condition) if bound else condition))
        return bool(solver.check() == context.z3.sat)

    def solver(self, known: _Known) -> tuple[Any, _Terms]:
        context = _Terms()
        for term, sort in known.sorts.items():
            context.constant(term, sort)
        solver = context.z3.Solver()
        solver.set("timeout", _SOLVER_LIMIT_MS)
        for expression, terms in known.assumed:
            solver.add(context.term(expression, dict(terms)))
        return solver, context


def _renamed(expression: Expression, old: str, new: str) -> Expression:
    if expression.kind == "name" and expression.value == old:
        return replace(expression, value=new)
    return replace(expression, parts=tuple(_renamed(part, old, new) for part in expression.parts))


class _Terms:
    """Expressions as z3 sees them."""

    def __init__(self) -> None:
        try:
            import z3
        except ImportError as error:
            raise missing_extra("z3-solver", "protocols", needed_for="Checking refinement types") from error
        self.z3: Any = z3
        self.constants: dict[str, Any] = {}

    def constant(self, name: str, kind: str) -> Any:
        make = {"bool": self.z3.Bool, "string": self.z3.String}.get(kind, self.z3.Int)
        return self.constants.setdefault(name, make(name))

    def sort_of(self, term: Any) -> str:
        return {"Bool": "bool", "String": "string"}.get(str(term.sort()), "int")

    def term(self, expression: Expression, names: dict[str, str]) -> Any:
        z3, kind = self.z3, expression.kind
        if kind == "name":
            return self.constants[names[str(expression.value)]]
        if kind in ("int", "bool", "string"):
            return {"int": z3.IntVal, "bool": z3.BoolVal, "string": z3.StringVal}[kind](expression.value)
        make: Any = {
            "not": z3.Not, "neg": operator.neg, "len": z3.Length, "&&": z3.And, "||": z3.Or, "=": operator.eq,
            "<>": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
            "+": operator.add, "-": operator.sub,
        }[kind]  # fmt: skip
        return make(*(self.term(part, names) for part in expression.parts))
