"""Rules that a global type keeps before it is worth projecting: guarded loops, honest choices, and the rules of a mix.

A choice belongs to one role: that role sends the first message of every branch, under different labels.  A mix is a
race of two: its left side begins with a message to the arbiter, its right side with one from the arbiter back, and
every role that may have gone on along the left side must be informed of the right one (rule a).  Between two roles no
label that informs stands on both sides of a mix (rule b), and nothing irreversible happens on the left side before it
is settled (rule c).

Source: nuScr's checks; for mixes, "Mixed Choice in Asynchronous Multiparty Session Types", arXiv 2602.23927, 2026.
"""

from __future__ import annotations

from wavetank.protocols.sessions.global_types import (
    Branching,
    Communication,
    End,
    GlobalType,
    Head,
    Jump,
    MixNode,
    Side,
)
from wavetank.protocols.sessions.syntax import IllFormedError, Place


def check_well_formed(protocol: GlobalType, *, reach: bool = True) -> list[str]:
    """Check a global type; fills in each mix's optimist.

    Parameters
    ----------
    protocol : GlobalType
    reach : bool
        Whether rule (a) of a mix is checked: every role that takes part in one side is informed of the other, too.

    Returns
    -------
    list of str
        What is allowed but odd, such as a choice with one branch, each with its place.

    Raises
    ------
    IllFormedError
        Names the rule, the line and the column.
    """
    _check_guarded(protocol)
    odd = []
    for number in protocol.reachable():
        node = protocol.nodes[number]
        if isinstance(node, Branching):
            odd += _check_choice(protocol, node)
    for number in sorted(protocol.mixes):
        _check_mix_start(protocol, protocol.mixes[number])
    for number in sorted(protocol.mixes):
        mix = protocol.mixes[number]
        _check_disjoint(protocol, mix)
        if reach:
            _check_reach(protocol, mix)
        _check_irreversible(protocol, mix)
    return odd


def _refuse(protocol: GlobalType, rule: str, problem: str, place: Place, **parts: object) -> IllFormedError:
    return IllFormedError(problem, rule=rule, where=protocol.where(place), **parts)


def _check_guarded(protocol: GlobalType) -> None:
    """Refuse a loop that can turn without a message: no walk over silent nodes may come back to where it was."""
    done: set[int] = set()
    for start in protocol.reachable():
        if start in done or isinstance(protocol.nodes[start], Communication | End):
            continue
        path: list[int] = []
        on_path: set[int] = set()
        waiting: list[tuple[int, bool]] = [(start, True)]
        while waiting:
            number, enters = waiting.pop()
            if not enters:
                on_path.discard(path.pop())
                done.add(number)
                continue
            if number in on_path:
                ring = path[path.index(number) :]
                jump = next(
                    (node for each in ring if isinstance(node := protocol.nodes[each], Jump)), protocol.nodes[number]
                )
                name = jump.name if isinstance(jump, Jump | Head | MixNode) else ""
                place = protocol.place if isinstance(jump, Communication | End) else jump.place
                raise _refuse(
                    protocol,
                    "guarded recursion",
                    f"The loop {name!r} can turn without a message: it is unguarded.",
                    place,
                    hint="send a message before it goes round",
                )
            if number in done or isinstance(protocol.nodes[number], Communication | End):
                continue
            path.append(number)
            on_path.add(number)
            waiting.append((number, False))
            waiting += [(follower, True) for follower in protocol.successors(number)]


def _check_choice(protocol: GlobalType, node: Branching) -> list[str]:
    seen: dict[str, Place] = {}
    if len(node.branches) == 1:
        if _is_whole_protocol(protocol, node):
            raise _refuse(
                protocol,
                "choice",
                "The whole protocol is a choice with one branch: nothing is chosen.",
                node.place,
                hint="leave `choice` out, or add `or { .. }`",
            )
        return [f"a choice with one branch, {protocol.where(node.place)}"]
    for branch in node.branches:
        for first in protocol.firsts(branch):
            if isinstance(first, End):
                raise _refuse(
                    protocol,
                    "choice",
                    f"A branch of the choice at {node.role!r} can end without a message, so that nobody learns of it.",
                    node.place,
                    hint=f"let every branch begin with a message from {node.role}",
                )
            if first.sender != node.role:
                raise _refuse(
                    protocol,
                    "choice",
                    f"The choice is {node.role!r}'s, but this branch begins with a message from {first.sender!r}.",
                    first.place,
                    allowed=f"messages from {node.role}",
                )
        for label, place in {
            (first.label, first.place) for first in protocol.firsts(branch) if isinstance(first, Communication)
        }:
            if label in seen:
                raise _refuse(
                    protocol,
                    "distinct labels",
                    f"Two branches begin with {label!r}; the other one in line {seen[label].line}.",
                    place,
                    hint="give each branch a label of its own",
                )
            seen[label] = place
    return []


def _is_whole_protocol(protocol: GlobalType, node: Branching) -> bool:
    """Return whether nothing stands outside this choice: it is the first thing and nobody loops to it."""
    number = protocol.start
    silent = 0
    while isinstance(head := protocol.nodes[number], Head | Jump):
        number = protocol.successors(number)[0]
        silent += 1
    inside = sum(isinstance(protocol.nodes[each], Communication) for each in protocol.reachable())
    return head is node and silent == 1 and inside == 1


def _check_mix_start(protocol: GlobalType, mix: MixNode) -> None:
    left, right = protocol.firsts(mix.left), protocol.firsts(mix.right)
    for side, firsts in (("left", left), ("right", right)):
        if any(isinstance(first, End) for first in firsts):
            raise _refuse(protocol, "mix", f"The {side} side of the mix can end without a message.", mix.place)
    begins_left, begins_right = (
        [first for first in firsts if isinstance(first, Communication)] for firsts in (left, right)
    )
    for first in begins_left:
        if first.receiver != mix.arbiter:
            raise _refuse(
                protocol,
                "mix",
                f"The left side of a mix begins with a message to its arbiter {mix.arbiter!r}; this one goes to "
                f"{first.receiver!r}.",
                first.place,
                hint=f"{first.label} from {first.sender} to {mix.arbiter};",
            )
    optimists = sorted({first.sender for first in begins_left})
    if len(optimists) > 1:
        raise _refuse(
            protocol,
            "mix",
            f"The left side of a mix begins with one role; here it may be {' or '.join(optimists)}.",
            mix.place,
        )
    mix.optimist = optimists[0]
    for first in begins_right:
        if (first.sender, first.receiver) != (mix.arbiter, mix.optimist):
            raise _refuse(
                protocol,
                "mix",
                f"The right side of a mix begins with a message from its arbiter {mix.arbiter!r} to {mix.optimist!r}; "
                f"this one goes from {first.sender!r} to {first.receiver!r}.",
                first.place,
                hint=f"{first.label} from {mix.arbiter} to {mix.optimist};",
            )


def _informing(protocol: GlobalType, mix: MixNode, side: Side) -> list[Communication]:
    """Return the messages of a side by which a role may learn that this side was taken."""
    start = mix.left if side == "left" else mix.right
    found: dict[int, Communication] = {}
    seen: set[tuple[int, frozenset[str]]] = set()
    waiting = [(start, frozenset[str]())]
    while waiting:
        number, settled = waiting.pop()
        node = protocol.nodes[number]
        if (number, settled) in seen or (isinstance(node, Communication) and (mix.number, side) not in node.scope):
            continue
        seen.add((number, settled))
        if isinstance(node, Communication):
            if node.receiver not in settled:
                found[number] = node
            if not settled:
                settled |= {mix.arbiter} if side == "left" else {mix.arbiter, mix.optimist}
            elif node.sender in settled:
                settled |= {node.receiver}
        waiting += [(follower, settled) for follower in protocol.successors(number)]
    return list(found.values())


def _check_disjoint(protocol: GlobalType, mix: MixNode) -> None:
    left = {(each.sender, each.receiver, each.label): each for each in _informing(protocol, mix, "left")}
    for each in _informing(protocol, mix, "right"):
        twin = left.get((each.sender, each.receiver, each.label))
        if twin is not None:
            raise _refuse(
                protocol,
                "disjoint labels (b)",
                f"{each.label!r} from {each.sender!r} to {each.receiver!r} can begin either side of the mix for "
                f"{each.receiver!r}; on the left in line {twin.place.line}.",
                each.place,
                hint="rename one of them",
            )


def _check_reach(protocol: GlobalType, mix: MixNode) -> None:
    pair = {mix.optimist, mix.arbiter}
    inside: dict[Side, set[str]] = {"left": set(), "right": set()}
    for each in protocol.communications():
        for number, side in each.scope:
            if number == mix.number:
                inside[side] |= {each.sender, each.receiver} - pair
    for role in sorted(inside["left"]):
        away = _unreached(protocol, mix.right, role, pair)
        if away is not None or role not in inside["right"]:
            raise _refuse(
                protocol,
                "reach (a)",
                f"{role!r} takes part in the left side of the mix, but on the right side nobody who knows of the "
                "interrupt informs it, so that it would wait there for ever.",
                mix.place if away is None or isinstance(away, End) else away.place,
                hint=f"send a message from {mix.arbiter} to {role} on the right side",
            )
    for role in sorted(inside["right"]):
        first = _first_action(protocol, mix.right, role)
        if first is not None and first.sender == role:
            raise _refuse(
                protocol,
                "reach (a)",
                f"{role!r} acts on the right side of the mix before it is informed of the interrupt.",
                first.place,
                hint=f"send a message from {mix.arbiter} to {role} first",
            )


def _unreached(protocol: GlobalType, start: int, role: str, informed: set[str]) -> Communication | End | None:
    """Return the first step of a way on which nobody who knows informs ``role``, or None when all ways inform it.

    Knowing spreads with messages, from the two who race.
    """
    seen: set[tuple[int, frozenset[str]]] = set()
    waiting = [(start, frozenset(informed))]
    while waiting:
        number, knowing = waiting.pop()
        if (number, knowing) in seen:
            continue
        seen.add((number, knowing))
        node = protocol.nodes[number]
        if isinstance(node, End):
            return node
        if isinstance(node, Communication):
            if node.sender == role or (node.receiver == role and node.sender not in knowing):
                return node
            if node.receiver == role:
                continue
            if node.sender in knowing:
                knowing |= {node.receiver}
        waiting += [(follower, knowing) for follower in protocol.successors(number)]
    return None


def _first_action(protocol: GlobalType, start: int, role: str) -> Communication | None:
    seen, waiting = {start}, [start]
    sends = None
    while waiting:
        number = waiting.pop()
        node = protocol.nodes[number]
        if isinstance(node, Communication) and role in (node.sender, node.receiver):
            if node.sender == role:
                return node
            sends = sends or node
            continue
        for follower in protocol.successors(number):
            if follower not in seen:
                seen.add(follower)
                waiting.append(follower)
    return sends


def _check_irreversible(protocol: GlobalType, mix: MixNode) -> None:
    """Follow the left side with the set of those who know that it is settled; refuse what they cannot take back."""
    seen: set[tuple[int, frozenset[str]]] = set()
    waiting = [(mix.left, frozenset[str]())]
    while waiting:
        number, settled = waiting.pop()
        if (number, settled) in seen:
            continue
        seen.add((number, settled))
        node = protocol.nodes[number]
        if isinstance(node, Communication):
            if node.irreversible and node.sender not in settled:
                raise _refuse(
                    protocol,
                    "irreversible (c)",
                    f"{node.label!r} cannot be taken back, but {node.sender!r} cannot know yet that the left side "
                    "is settled.",
                    node.place,
                    hint=f"let a message reach {node.sender} from {mix.arbiter} first",
                )
            if not settled or node.sender in settled:
                # The arbiter settles the mix by taking the first message.
                settled |= {node.receiver}
        waiting += [(follower, settled) for follower in protocol.successors(number)]
