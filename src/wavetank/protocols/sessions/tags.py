"""Tags: on which side of which mixes a role stands, carried by every message it sends.

A tag lists the mixes a role knows to be begun, in the order it learned of them; instances of one mix in a loop are
counted as turns, and turns in a row on the same side are one entry, so that a tag grows with interrupts and not with
iterations.  A message whose tag says *left* where its receiver knows *right* is stale and is dropped; one that says
*right* where its receiver went *left* makes the receiver switch.  Right overrides left; left never overrides right.
A message that cannot be taken yet is dropped, too, when another one that waits shows that it is stale: the one that
would inform the receiver may stand behind it.

Source: "Mixed Choice in Asynchronous Multiparty Session Types", arXiv 2602.23927, 2026; the encoding is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple


class Mark(NamedTuple):
    """Turns ``first`` to ``last`` of one mix, all of which went right, or all left."""

    mix: int
    first: int
    last: int
    right: bool


class Relation(NamedTuple):
    """How a message's tag stands to what its receiver knows.

    Parameters
    ----------
    how : str
        ``fits``: nothing new; ``ahead``: something new; ``stale``: from a left side that was given up; ``overrides``:
        from a right side that the receiver has not learned of yet.
    mix, turn : int
        Where the two differ first, for ``stale`` and ``overrides``.
    """

    how: Literal["fits", "ahead", "stale", "overrides"]
    mix: int = 0
    turn: int = 0


Tag = tuple[Mark, ...]
NO_TAG: Tag = ()
_FITS, _AHEAD = Relation("fits"), Relation("ahead")


def relation(mine: Tag, theirs: Tag) -> Relation:
    """Return how a message's tag stands to what its receiver knows.

    Examples
    --------
    >>> left, right = (Mark(1, 1, 1, False),), (Mark(1, 1, 1, True),)
    >>> [relation(left, right).how, relation(right, left).how, relation((), left).how, relation(left, left).how]
    ['overrides', 'stale', 'ahead', 'fits']
    """
    if mine == theirs:
        return _FITS
    ahead = False
    for mark in theirs:
        known = 0
        for own in mine:
            if own.mix != mark.mix:
                continue
            known = max(known, own.last)
            turn = max(own.first, mark.first)
            if own.right != mark.right and turn <= min(own.last, mark.last):
                return Relation("stale" if own.right else "overrides", mark.mix, turn)
        ahead = ahead or mark.last > known
    return _AHEAD if ahead else _FITS


def turns_of(tag: Tag, mix: int) -> int:
    """Return how many instances of a mix a tag knows of."""
    return max((mark.last for mark in tag if mark.mix == mix), default=0)


def passes(mine: Tag, theirs: Tag, through: Iterable[tuple[int, str]]) -> bool:
    """Return whether a message can be the one a role waits for, given on which sides of which mixes that one stands.

    A role that waits at a mix it has not passed must not take a message from beyond it: what the tag says of the next
    turn of each mix must be the side that leads to the step.

    Examples
    --------
    >>> passes((), (Mark(1, 1, 2, False), Mark(1, 3, 3, True)), [(1, "right")])
    False
    """
    for mix, side in through:
        turn = turns_of(mine, mix) + 1
        for mark in theirs:
            if mark.mix == mix and mark.first <= turn <= mark.last and mark.right != (side == "right"):
                return False
    return True


def voids(one: Tag, other: Tag) -> bool:
    """Return whether a tag shows that another comes from a left side that was given up."""
    return relation(one, other).how == "stale"


def joined(mine: Tag, theirs: Tag) -> Tag:
    """Return what a role knows after taking a message whose tag fits or is ahead."""
    if mine == theirs or not theirs:
        return mine
    news = []
    for mark in theirs:
        known = turns_of(mine, mark.mix)
        if mark.last > known:
            news.append(mark._replace(first=max(mark.first, known + 1)))
    return _together(mine, news) if news else mine


def switched(mine: Tag, mix: int, turn: int) -> Tag:
    """Return what a role knows after switching to the right side of one turn of a mix; what it did since is void."""
    kept = []
    for mark in mine:
        if mark.mix == mix and mark.first <= turn <= mark.last:
            if mark.first < turn:
                kept.append(mark._replace(last=turn - 1))
            break
        kept.append(mark)
    return _together(tuple(kept), (Mark(mix, turn, turn, True),))


def begun(mine: Tag, mix: int, side: str) -> Tag:
    """Return what a role knows after it has begun one side of the next turn of a mix."""
    turn = turns_of(mine, mix) + 1
    return _together(mine, (Mark(mix, turn, turn, side == "right"),))


def agree(one: Tag, other: Tag) -> bool:
    """Return whether two roles stand on the same side of every mix that both know of."""
    return relation(one, other).how in ("fits", "ahead")


def sides_of(tag: Tag) -> Iterable[tuple[int, int, bool]]:
    """Yield (mix, turn, right) for every turn a tag lists."""
    for mark in tag:
        for turn in range(mark.first, mark.last + 1):
            yield mark.mix, turn, mark.right


def without(tag: Tag, mix: int, turn: int) -> Tag:
    """Return a tag with one turn of a mix forgotten, and later turns counted from one less."""
    kept = []
    for mark in tag:
        if mark.mix == mix:
            first = mark.first - (mark.first > turn)
            last = mark.last - (mark.last >= turn)
            if first <= last:
                kept.append(mark._replace(first=first, last=last))
        else:
            kept.append(mark)
    return _together((), kept)


def _together(tag: Tag, more: Iterable[Mark]) -> Tag:
    found = list(tag)
    for mark in more:
        if found and found[-1].mix == mark.mix and found[-1].right == mark.right and found[-1].last + 1 == mark.first:
            found[-1] = found[-1]._replace(last=mark.last)
        else:
            found.append(mark)
    return tuple(found)
