"""Who computes which microbatches of a step: as many in all, whatever number of replicas is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wavetank.errors import BadValueError

Assignment = dict[int, tuple[int, ...]]
"""Microbatch ids by rank."""


def balanced(count: int, replicas: int) -> list[int]:
    """Return quotas that differ by at most one and sum to ``count``; the first replicas have the larger ones.

    Parameters
    ----------
    count : int
        Microbatches of a step.
    replicas : int
        Living replicas.

    Raises
    ------
    BadValueError
        If there is no replica, or no microbatch.
    """
    _check(count, replicas)
    least, more = divmod(count, replicas)
    return [least + (place < more) for place in range(replicas)]


def majors(count: int, replicas: int) -> list[int]:
    """Return quotas of full replicas, one that does the rest, and spares without work; they sum to ``count``.

    A full replica does ``ceil(count / replicas)`` microbatches.  A spare can take over from the next replica that dies
    without a change of the others' quotas.

    Parameters
    ----------
    count : int
        Microbatches of a step.
    replicas : int
        Living replicas.

    Raises
    ------
    BadValueError
        If there is no replica, or no microbatch.
    """
    _check(count, replicas)
    full = -(-count // replicas)
    return [max(0, min(full, count - place * full)) for place in range(replicas)]


def _check(count: int, replicas: int) -> None:
    if count < 1 or replicas < 1:
        raise BadValueError(
            "A step needs microbatches, and replicas that compute them.",
            given=f"{count} microbatches, {replicas} replicas",
            allowed="1 or more of both",
        )


def assign(ids: Sequence[int], members: Sequence[int], quotas: Sequence[int]) -> Assignment:
    """Return contiguous ranges of ids by member.

    Parameters
    ----------
    ids : sequence of int
    members : sequence of int
    quotas : sequence of int
        As many as members; they sum to the number of ids.
    """
    if len(quotas) != len(members) or sum(quotas) != len(ids) or any(quota < 0 for quota in quotas):
        raise BadValueError(
            "The quotas do not divide the microbatches among the members.",
            given=list(quotas),
            allowed=f"{len(members)} numbers that sum to {len(ids)}",
        )
    found, begin = {}, 0
    for member, quota in zip(members, quotas, strict=True):
        found[member] = tuple(ids[begin : begin + quota])
        begin += quota
    return found


def take_over(held: Mapping[int, tuple[int, ...]], members: Sequence[int], quotas: Sequence[int]) -> Assignment:
    """Return what each survivor computes in addition, so that together they have all microbatches of the step.

    Parameters
    ----------
    held : mapping of int to tuple of int
        What every member had, the lost ones included.
    members : sequence of int
        The survivors.
    quotas : sequence of int
        What each survivor should have in all; nobody gives away what it has computed.
    """
    lost = [each for rank in sorted(held) if rank not in members for each in held[rank]]
    extra: Assignment = {}
    for member, quota in zip(members, quotas, strict=True):
        room = max(0, quota - len(held[member]))
        extra[member], lost = tuple(lost[:room]), lost[room:]
    return extra
