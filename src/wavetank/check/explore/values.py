"""Plain values as states: a canonical form to compare them by, copies that share nothing that changes, new names.

The explorer treats the fields of a node as its state.  Two states are the same when their canonical forms are equal:
the order of entries in a dict or a set does not count, types do (1, 1.0 and True differ).  What cannot be compared in
this way (an open file, a function that keeps state) is refused with the path of the field.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from types import FunctionType, MethodType
from typing import Any, cast

import msgspec

from wavetank.errors import BadValueError
from wavetank.sim.node import Node, Opaque
from wavetank.sim.rng import Draws

_ATOMS = (int, str, bytes, type(None))
# Handed round as they are: names of things, not things that change.
_FIXED = (type, enum.Enum, range)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object that are its state, by name."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                found[name] = getattr(value, name)
    return sorted(found.items())


def _is_object(value: Any) -> bool:
    return type(value).__module__ != "builtins" and (hasattr(value, "__dict__") or hasattr(type(value), "__slots__"))


def canonical(value: Any, where: str = "value") -> Hashable:
    """Return a hashable form that is equal for equal values and different for different ones.

    Parameters
    ----------
    value : object
        Numbers, text, bytes, None, tuples, lists, deques, dicts, sets, enumerations, messages, and objects of them.
    where : str
        Its name, for the message of an error.

    Raises
    ------
    BadValueError
        For a value that cannot be compared.
    """
    return _canonical(value, where, {})


def _canonical(value: Any, where: str, open_objects: dict[int, int]) -> Hashable:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is bool or kind is float:
        return (kind, repr(value))
    if kind is tuple or kind is list or kind is deque:
        return (kind, *[_canonical(item, f"{where}[{at}]", open_objects) for at, item in enumerate(value)])
    if kind is set or kind is frozenset:
        return (kind, frozenset([_canonical(item, f"{where}{{}}", open_objects) for item in value]))
    if isinstance(value, dict):
        pairs = [
            (_canonical(key, f"{where} key", open_objects), _canonical(item, f"{where}[{key!r}]", open_objects))
            for key, item in value.items()
        ]
        return (kind, frozenset(pairs))
    if isinstance(value, Opaque):
        return Opaque
    if isinstance(value, _FIXED):
        return value
    if kind is MethodType:
        # A method kept in a field is its name and its object, mostly the node itself.
        of_context = isinstance(value.__self__, Opaque)
        method = value.__func__.__name__ if of_context else value.__func__
        return (kind, method, _canonical(value.__self__, f"{where}.__self__", open_objects))
    if kind is FunctionType and value.__closure__ is None:
        return value
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return (kind, *[_canonical(getattr(value, name), f"{where}.{name}", open_objects) for name in names])
    if isinstance(value, tuple):
        return (kind, *[_canonical(item, f"{where}[{at}]", open_objects) for at, item in enumerate(value)])
    if isinstance(value, Draws):
        return (Draws, value.key, value.count)
    if _is_object(value):
        if id(value) in open_objects:
            return (Opaque, open_objects[id(value)])
        open_objects[id(value)] = len(open_objects)
        fields = [
            (name, _canonical(item, f"{where}.{name}", open_objects))
            for name, item in _fields(value)
            if not (name == "context" and isinstance(item, Opaque))
        ]
        del open_objects[id(value)]
        return (kind, *fields)
    raise BadValueError(
        "The state of a node holds a value that cannot be compared.",
        given=repr(value)[:80],
        allowed="numbers, text, bytes, None, tuples, lists, dicts, sets, messages, and objects made of them",
        where=where,
        hint="keep plain values in the fields of a node, and get time and randomness from its context",
    )


def copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a copy that shares nothing that can change with the original.

    Parameters
    ----------
    value : object
        As :func:`canonical` takes it.
    memo : dict, optional
        Copies made so far by ``id``: what is one object inside ``value`` is one object inside the copy.
    """
    kind = type(value)
    if kind in _ATOMS or kind is bool or kind is float:
        return value
    memo = {} if memo is None else memo
    if kind is tuple:
        items = [copied(item, memo) for item in value]
        return value if all(one is other for one, other in zip(items, value, strict=True)) else tuple(items)
    if isinstance(value, (Opaque, frozenset, *_FIXED)) or (kind is FunctionType and value.__closure__ is None):
        return value
    if id(value) in memo:
        return memo[id(value)]
    made: Any
    if kind is list or kind is deque:
        made = memo[id(value)] = [] if kind is list else deque(maxlen=value.maxlen)
        made.extend([copied(item, memo) for item in value])
    elif kind is dict:
        made = memo[id(value)] = {}
        made.update([(key, copied(item, memo)) for key, item in value.items()])
    elif kind is set:
        made = memo[id(value)] = set(value)
    elif isinstance(value, msgspec.Struct) and value.__struct_config__.frozen:
        return value
    elif kind is MethodType:
        made = MethodType(value.__func__, copied(value.__self__, memo))
    elif isinstance(value, dict):
        # defaultdict, Counter, OrderedDict: their own copy knows their factory.
        made = memo[id(value)] = value.copy()
        for key, item in value.items():
            made[key] = copied(item, memo)
    elif isinstance(value, tuple):
        made = type(value)(*[copied(item, memo) for item in value])
    elif isinstance(value, Draws):
        made = memo[id(value)] = value.copy()
    elif _is_fixed_dataclass(cast(Any, kind)):
        return value
    else:
        made = memo[id(value)] = object.__new__(kind)
        if isinstance(value, Node) and not has_slots(cast(Any, kind)):
            made.__dict__.update([(name, copied(item, memo)) for name, item in value.__dict__.items()])
        else:
            for name, item in _fields(value):
                object.__setattr__(made, name, copied(item, memo))
    return made


@cache
def has_slots(kind: Any) -> bool:
    """Return whether objects of this class keep fields in slots; abstract bases declare that they keep none."""
    return any(base.__dict__.get("__slots__") for base in kind.__mro__)


@cache
def _is_fixed_dataclass(kind: Any) -> bool:
    """Return whether objects of this class are parameters: frozen, and hashed by what they hold."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and kind.__hash__ is not None


def renamed(
    value: Any, ids: Mapping[type, Mapping[str, str]], rename: Callable[[int], int], order: tuple[int, ...]
) -> Any:
    """Return a copy in which node ids are replaced, where a declaration says that there are some.

    Parameters
    ----------
    value : object
    ids : mapping
        Class to (field to role); the roles are those of :class:`~wavetank.check.explore.environment.Symmetry`.
    rename : callable
        Old id to new id.
    order : tuple of int
        The old id at each new id, for fields that are indexed by node.
    """
    if isinstance(value, Node | msgspec.Struct) or (type(value) in ids):
        roles: Mapping[str, str] = {}
        for kind in type(value).__mro__:
            roles = {**ids.get(kind, {}), **roles}
        if isinstance(value, msgspec.Struct):
            return type(value)(
                **{
                    name: _in_role(getattr(value, name), roles.get(name, ""), ids, rename, order)
                    for name in value.__struct_fields__
                }
            )
        made: Any = object.__new__(type(value))
        for name, item in _fields(value):
            object.__setattr__(made, name, _in_role(item, roles.get(name, ""), ids, rename, order))
        return made
    if type(value) in (tuple, list, set, frozenset):
        return type(value)([renamed(item, ids, rename, order) for item in value])
    if isinstance(value, dict):
        return {renamed(key, ids, rename, order): renamed(item, ids, rename, order) for key, item in value.items()}
    return value


def _in_role(
    value: Any, role: str, ids: Mapping[type, Mapping[str, str]], rename: Callable[[int], int], order: tuple[int, ...]
) -> Any:
    if role == "ids":
        return _all_ids(value, rename)
    if role == "keys":
        return {rename(key): renamed(item, ids, rename, order) for key, item in value.items()}
    if role == "index":
        return type(value)([renamed(value[old], ids, rename, order) for old in order])
    return renamed(value, ids, rename, order)


def _all_ids(value: Any, rename: Callable[[int], int]) -> Any:
    if type(value) is int:
        return rename(value) if value >= 0 else value
    if type(value) in (tuple, list, set, frozenset):
        return type(value)([_all_ids(item, rename) for item in value])
    if isinstance(value, dict):
        return {_all_ids(key, rename): _all_ids(item, rename) for key, item in value.items()}
    return value
