"""Global types: what a protocol says of all its roles at once, as a graph.

Loops are edges back to their head, calls with ``do`` are expanded (equal calls share one node), and what follows a
choice or a mix is one node that all sides lead to, so that the graph stays as small as the text.  A node knows inside
which sides of which mixes it stands: its scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from wavetank.errors import nearest_of
from wavetank.protocols.sessions.syntax import (
    Choice,
    Continue,
    Do,
    Expression,
    IllFormedError,
    Loop,
    Message,
    Mix,
    Module,
    Payload,
    Place,
    Protocol,
    RecursionVariable,
    Statement,
    Unsupported,
    where,
)

Side = Literal["left", "right"]
Scope = tuple[tuple[int, Side], ...]

LARGEST_GRAPH_NODES = 200_000
DEEPEST_CALLS = 200
IRREVERSIBLE = "irreversible"


@dataclass(slots=True)
class Communication:
    """One message from one role to another, then ``after``."""

    sender: str
    receiver: str
    label: str
    payload: tuple[Payload, ...]
    after: int
    place: Place
    scope: Scope
    irreversible: bool = False


@dataclass(slots=True)
class Branching:
    """A choice that ``role`` makes."""

    role: str
    branches: tuple[int, ...]
    place: Place


@dataclass(slots=True)
class MixNode:
    """A mixed choice: ``optimist`` may begin the left side while ``arbiter`` may begin the right one.

    ``number`` names the mix in its protocol; ``optimist`` is filled in once the sides are known.
    """

    number: int
    left: int
    right: int
    arbiter: str
    place: Place
    name: str
    optimist: str = ""


@dataclass(slots=True)
class Head:
    """The head of a loop, with the variables it carries when refinement types are on."""

    name: str
    body: int
    place: Place
    variables: tuple[RecursionVariable, ...] = ()


@dataclass(slots=True)
class Jump:
    """Back to the head of a loop, or into a protocol that is being expanded."""

    name: str
    target: int
    place: Place
    values: tuple[Expression, ...] = ()


@dataclass(slots=True)
class End:
    """Nothing more to do."""


Node = Communication | Branching | MixNode | Head | Jump | End


@dataclass(slots=True)
class GlobalType:
    """A protocol as a graph.

    Parameters
    ----------
    name : str
    roles : tuple of str
    nodes : list of Node
        Node 0 is the end.
    start : int
    path : str
        The file, for messages.
    mixes : dict
        Number of a mix to its node.
    refined : bool
        Whether refinement types are on, which makes projection mind the values a role has not seen.
    unfolds : bool
        Whether a loop may be merged with what is no loop (always so with nested protocols).
    """

    name: str
    roles: tuple[str, ...]
    nodes: list[Node]
    start: int
    path: str
    place: Place
    mixes: dict[int, MixNode] = field(default_factory=dict)
    refined: bool = False
    unfolds: bool = False

    def where(self, place: Place) -> str:
        """Return a place in this protocol's file as messages show it."""
        return where(self.path, place)

    def successors(self, number: int) -> tuple[int, ...]:
        """Return the nodes that follow a node."""
        node = self.nodes[number]
        match node:
            case Communication():
                return (node.after,)
            case Branching():
                return node.branches
            case MixNode():
                return (node.left, node.right)
            case Head():
                return (node.body,)
            case Jump():
                return (node.target,)
        return ()

    def walk(self, *starts: int, stops: Callable[[Node], bool] = lambda node: False) -> Iterator[int]:
        """Yield the nodes that the starts lead to, in the order of the text, not beyond those at which it stops."""
        seen, waiting = set(starts), list(starts)
        while waiting:
            number = waiting.pop()
            yield number
            if not stops(self.nodes[number]):
                for follower in reversed(self.successors(number)):
                    if follower not in seen:
                        seen.add(follower)
                        waiting.append(follower)

    def reachable(self) -> list[int]:
        """Return the nodes that the start leads to, in the order of a walk along the text."""
        return list(self.walk(self.start))

    def communications(self) -> Iterator[Communication]:
        """Yield every message of the protocol."""
        for number in self.reachable():
            node = self.nodes[number]
            if isinstance(node, Communication):
                yield node

    def first_numbers(self, start: int) -> list[int]:
        """Return the numbers of :meth:`firsts`."""

        def stops(node: Node) -> bool:
            return isinstance(node, Communication | End)

        return [number for number in self.walk(start, stops=stops) if stops(self.nodes[number])]

    def firsts(self, start: int) -> list[Communication | End]:
        """Return the messages with which what begins at ``start`` can begin, and the end if it can do nothing."""
        found = (self.nodes[number] for number in self.first_numbers(start))
        return [node for node in found if isinstance(node, Communication | End)]


def globals_of(module: Module, *, unfolds: bool = False) -> dict[str, GlobalType | IllFormedError]:
    """Return the global type of every protocol of a file, or the reason why it has none.

    Parameters
    ----------
    module : Module
    unfolds : bool
        Merge a loop with what is no loop; see :class:`GlobalType`.

    Raises
    ------
    IllFormedError
        When names clash, so that no protocol of the file can be read on its own.
    """
    _check_declarations(module.protocols, module)
    _check_declarations(module.nested, module)
    found: dict[str, GlobalType | IllFormedError] = {}
    for name, protocol, visible in _all_protocols(module):
        try:
            found[name] = _Builder(module, protocol, name, visible, unfolds).build()
        except IllFormedError as error:
            found[name] = error
    return found


def global_type(module: Module, name: str = "", *, unfolds: bool = False) -> GlobalType:
    """Return the global type of one protocol of a file: the named one, or the first that is not ``aux``.

    Raises
    ------
    IllFormedError
    """
    _check_declarations(module.protocols, module)
    _check_declarations(module.nested, module)
    known = {each: (protocol, visible) for each, protocol, visible in _all_protocols(module)}
    plain = [protocol.name for protocol in module.protocols if not protocol.auxiliary]
    if not name:
        name = next(iter(plain or known), "")
    if name not in known:
        raise IllFormedError(
            "The file has no such protocol." if name else "The file has no protocol.",
            rule="protocol",
            given=name or None,
            allowed=list(known) or None,
            nearest=nearest_of(name, known),
            where=module.path,
        )
    return _Builder(module, known[name][0], name, known[name][1], unfolds).build()


def _all_protocols(module: Module) -> Iterator[tuple[str, Protocol, dict[str, Protocol]]]:
    """Yield each protocol with its full name and the nested protocols it can call."""

    def walk(
        protocol: Protocol, prefix: str, visible: dict[str, Protocol]
    ) -> Iterator[tuple[str, Protocol, dict[str, Protocol]]]:
        name = prefix + protocol.name
        inner = {**visible, **{each.name: each for each in protocol.nested}}
        yield name, protocol, inner
        for each in protocol.nested:
            yield from walk(each, f"{name}.", inner)

    top = {each.name: each for each in module.nested}
    for each in module.protocols:
        yield from walk(each, "", top)
    taken = {each.name for each in module.protocols}
    for each in module.nested:
        yield from walk(each, "nested " if each.name in taken else "", top)


def _check_declarations(protocols: tuple[Protocol, ...], module: Module) -> None:
    seen: dict[str, Protocol] = {}
    for protocol in protocols:
        if protocol.name in seen:
            raise IllFormedError(
                f"The protocol {protocol.name!r} is defined twice; first in line {seen[protocol.name].place.line}.",
                rule="names",
                where=where(module.path, protocol.place),
                hint="rename one of them",
            )
        seen[protocol.name] = protocol
        if protocol.nested and not module.has_nested:
            raise _pragma_missing(module.path, protocol.nested[0].place)
        _check_declarations(protocol.nested, module)
        if protocol.kind == "nested" and not module.has_nested:
            raise _pragma_missing(module.path, protocol.place)


def _pragma_missing(path: str, place: Place) -> IllFormedError:
    return IllFormedError(
        "Nested protocols must be turned on.",
        rule="pragma",
        where=where(path, place),
        hint="begin the file with (*# NestedProtocols #*)",
    )


class _Builder:
    def __init__(
        self, module: Module, protocol: Protocol, name: str, visible: dict[str, Protocol], unfolds: bool
    ) -> None:
        self.module, self.protocol, self.visible = module, protocol, visible
        self.name = name
        self.unfolds = unfolds or module.has_nested
        self.globals = {each.name: each for each in module.protocols}
        self.nodes: list[Node] = [End()]
        self.mixes: dict[int, MixNode] = {}
        # (protocol, roles, what follows, scope) -> head of the expansion
        self.expanded: dict[tuple[str, tuple[str, ...], int, Scope], int] = {}
        self.active: list[tuple[str, tuple[str, ...]]] = []

    def build(self) -> GlobalType:
        protocol = self.protocol
        if protocol.kind == "local":
            raise self.refuse(
                "supported",
                "A local protocol is the result of projection, not its input.",
                protocol.place,
                hint="write the global protocol",
            )
        if protocol.parametric:
            raise self.refuse(
                "supported",
                "Protocols with type or signature parameters are not supported.",
                protocol.place,
                hint="write the types and labels out",
            )
        roles = (*protocol.roles, *protocol.new_roles)
        try:
            start = self.expand(protocol, roles, roles, 0, (), protocol.place)
        except RecursionError as error:
            raise self.refuse("size", "The calls and blocks go too deep.", protocol.place) from error
        return GlobalType(
            self.name,
            roles,
            self.nodes,
            start,
            self.module.path,
            protocol.place,
            self.mixes,
            self.module.has_refinements,
            self.unfolds,
        )

    def refuse(self, rule: str, problem: str, place: Place, **parts: object) -> IllFormedError:
        return IllFormedError(problem, rule=rule, where=where(self.module.path, place), **parts)

    def add(self, node: Node, place: Place) -> int:
        if len(self.nodes) >= LARGEST_GRAPH_NODES:
            raise self.refuse(
                "size",
                "The protocol is too large once its calls are expanded.",
                place,
                allowed=f"{LARGEST_GRAPH_NODES} nodes",
            )
        self.nodes.append(node)
        return len(self.nodes) - 1

    def expand(
        self,
        protocol: Protocol,
        formal: tuple[str, ...],
        actual: tuple[str, ...],
        after: int,
        scope: Scope,
        place: Place,
    ) -> int:
        if len(set(formal)) < len(formal):
            twice = next(role for role in formal if formal.count(role) > 1)
            raise self.refuse("roles", f"The role {twice!r} is declared twice.", protocol.place)
        call = (protocol.name, actual)
        key = (*call, after, scope)
        if key in self.expanded:
            return self.add(Jump(protocol.name, self.expanded[key], place), place)
        if call in self.active:
            # The last thing done on a side of a mix may be to begin again what the mix stands in, as `continue` does.
            for depth in range(len(scope)):
                outer = (*call, after, scope[:depth])
                if outer in self.expanded:
                    return self.add(Jump(protocol.name, self.expanded[outer], place), place)
            raise self.refuse(
                "tail recursion",
                f"The protocol {protocol.name!r} calls itself and something follows the call, so that it has no finite "
                "form.",
                place,
                hint="let the call be the last thing that is done",
            )
        if len(self.active) >= DEEPEST_CALLS:
            raise self.refuse("size", "The calls go too deep.", place, allowed=f"{DEEPEST_CALLS} calls")
        head = self.add(Head(protocol.name, 0, place), place)
        self.expanded[key] = head
        self.active.append(call)
        body = self.block(protocol.body, after, dict(zip(formal, actual, strict=True)), {}, scope)
        self.active.pop()
        node = self.nodes[head]
        if isinstance(node, Head):
            node.body = body
        return head

    def role(self, name: str, roles: dict[str, str], place: Place) -> str:
        if name not in roles:
            raise self.refuse(
                "roles",
                f"There is no role named {name!r} here.",
                place,
                allowed=list(roles),
                nearest=nearest_of(name, roles),
            )
        return roles[name]

    def block(
        self, statements: tuple[Statement, ...], after: int, roles: dict[str, str], loops: dict[str, int], scope: Scope
    ) -> int:
        for position in range(len(statements) - 1, -1, -1):
            statement = statements[position]
            if position + 1 < len(statements):
                self.check_followed(statement, statements[position + 1].place)
            after = self.statement(statement, after, roles, loops, scope)
        return after

    def check_followed(self, statement: Statement, place: Place) -> None:
        if isinstance(statement, Continue):
            raise self.refuse("reachable", "Nothing can follow `continue`: this is never reached.", place)
        if self.module.has_nested and isinstance(statement, Choice | Loop):
            word = "choice" if isinstance(statement, Choice) else "rec"
            raise self.refuse(
                "tail", f"With nested protocols nothing may follow a {word}.", place, hint="move it into the branches"
            )

    def statement(
        self, statement: Statement, after: int, roles: dict[str, str], loops: dict[str, int], scope: Scope
    ) -> int:
        match statement:
            case Message():
                return self.message(statement, after, roles, scope)
            case Choice():
                role = self.role(statement.role, roles, statement.place)
                branches = tuple(self.block(each, after, roles, loops, scope) for each in statement.branches)
                return self.add(Branching(role, branches, statement.place), statement.place)
            case Mix():
                return self.mix(statement, after, roles, loops, scope)
            case Loop():
                variables = tuple(
                    replace(variable, roles=tuple(self.role(each, roles, variable.place) for each in variable.roles))
                    for variable in statement.variables
                )
                head = self.add(Head(statement.name, 0, statement.place, variables), statement.place)
                body = self.block(statement.body, after, roles, {**loops, statement.name: head}, scope)
                node = self.nodes[head]
                if isinstance(node, Head):
                    node.body = body
                return head
            case Continue():
                if statement.name not in loops:
                    raise self.refuse(
                        "recursion",
                        f"There is no `rec {statement.name}` around this.",
                        statement.place,
                        allowed=list(loops) or "nothing: there is no `rec` around it",
                        nearest=nearest_of(statement.name, loops),
                    )
                target = loops[statement.name]
                return self.add(Jump(statement.name, target, statement.place, statement.values), statement.place)
            case Do():
                return self.call(statement, after, roles, scope)
            case Unsupported():
                raise self.refuse("supported", f"`{statement.word}`: {statement.why}.", statement.place)

    def message(self, message: Message, after: int, roles: dict[str, str], scope: Scope) -> int:
        sender = self.role(message.sender, roles, message.place)
        delegated = next((each for each in message.payload if each.delegated), None)
        if delegated is not None:
            raise self.refuse(
                "supported",
                "Sessions cannot be sent: delegation is not supported.",
                delegated.place,
                given=f"{delegated.type}@{delegated.delegated}",
            )
        for name in reversed(message.receivers):
            receiver = self.role(name, roles, message.place)
            if receiver == sender:
                raise self.refuse("reflexive", f"The role {sender!r} sends to itself.", message.place)
            after = self.add(
                Communication(
                    sender,
                    receiver,
                    message.label,
                    message.payload,
                    after,
                    message.place,
                    scope,
                    IRREVERSIBLE in message.annotation.split(),
                ),
                message.place,
            )
        return after

    def mix(self, mix: Mix, after: int, roles: dict[str, str], loops: dict[str, int], scope: Scope) -> int:
        number = len(self.mixes) + 1
        arbiter = self.role(mix.arbiter, roles, mix.place)
        node = MixNode(number, 0, 0, arbiter, mix.place, mix.name or f"mix{number}")
        if any(each.name == node.name for each in self.mixes.values()):
            # A named mix may be expanded more than once; every expansion is an instance of its own.
            node.name = f"{node.name}_{number}"
        self.mixes[number] = node
        node.left = self.block(mix.left, after, roles, loops, (*scope, (number, "left")))
        node.right = self.block(mix.right, after, roles, loops, (*scope, (number, "right")))
        return self.add(node, mix.place)

    def call(self, call: Do, after: int, roles: dict[str, str], scope: Scope) -> int:
        nested = bool(call.caller)
        if nested and not self.module.has_nested:
            raise _pragma_missing(self.module.path, call.place)
        if call.arguments:
            raise self.refuse("supported", "Type and signature arguments are not supported.", call.place)
        actual = tuple(self.role(each, roles, call.place) for each in call.roles)
        known = self.visible if nested else self.globals
        if call.protocol not in known:
            elsewhere = self.globals if nested else self.visible
            raise self.refuse(
                "names",
                f"There is no {'nested' if nested else 'global'} protocol named {call.protocol!r} here.",
                call.place,
                allowed=list(known) or None,
                nearest=nearest_of(call.protocol, known),
                hint=("write `do` for a global protocol" if nested else "write `ROLE calls` for a nested protocol")
                if call.protocol in elsewhere
                else (
                    "protocols of other modules are not read: copy it into this file" if self.module.imports else None
                ),
            )
        protocol = known[call.protocol]
        if len(actual) != len(protocol.roles):
            raise self.refuse(
                "arity",
                f"The protocol {call.protocol!r} takes {len(protocol.roles)} roles.",
                call.place,
                given=", ".join(call.roles) or "none",
                allowed=", ".join(protocol.roles),
            )
        if len(set(actual)) < len(actual):
            raise self.refuse(
                "roles",
                f"A role takes two parts in the call of {call.protocol!r}.",
                call.place,
                given=", ".join(call.roles),
            )
        if protocol.parametric:
            raise self.refuse("supported", "Protocols with type or signature parameters are not supported.", call.place)
        if not self.module.has_nested:
            return self.expand(protocol, protocol.roles, actual, after, scope, call.place)
        # With nested protocols a call is a session of its own; here it is the invitations that its caller sends.
        caller = self.role(call.caller, roles, call.place) if nested else actual[0]
        label = f"call_{caller}_{call.protocol}_{'_'.join(actual)}"
        for invited in reversed([each for each in actual if each != caller]):
            after = self.add(Communication(caller, invited, label, (), after, call.place, scope), call.place)
        return after
