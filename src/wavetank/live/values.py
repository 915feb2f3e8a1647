"""Plain values as bytes and back, with their types: what nodes save, decide and reply crosses files and sockets.

MessagePack alone would bring a tuple back as a list and a message as a list of its fields.  Here tuples, sets, large
integers, messages and dataclasses are marked, so that a value comes back equal to the one that was given.  Only classes
that were named beforehand are ever made; nothing is imported or executed.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.sim import faults, network
from wavetank.sim.node import Algorithm, Message, Node

_TUPLE, _SET, _FROZENSET, _LARGE, _OBJECT = 1, 2, 3, 4, 5
_PLAIN = frozenset((type(None), bool, float, str, bytes))
_LEAST, _GREATEST = -(2**63), 2**64 - 1
_DEEPEST = 100


class ValueCodec:
    """Encodes plain values; the classes it may make are fixed when it is built.

    Parameters
    ----------
    classes : iterable of type
        Messages and dataclasses that values may hold.

    Examples
    --------
    >>> codec = ValueCodec()
    >>> codec.decode(codec.encode({"log": (1, [2, frozenset({3})])}))
    {'log': (1, [2, frozenset({3})])}
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._classes = {kind.__qualname__: kind for kind in classes}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ext_hook=self._unmarked)

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes.

        Raises
        ------
        BadValueError
            If it holds something that is not plain: a function, an open file, a class that is not known.
        """
        return self._encoder.encode(self._marked(value, 0))

    def decode(self, data: bytes | memoryview) -> Any:
        """Return the value.

        Raises
        ------
        BadFileError
            If the bytes are not what :meth:`encode` made.
        """
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise BadFileError("The bytes hold no value.", given=str(error)) from error

    def _marked(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if depth > _DEEPEST:
            raise BadValueError("The value is nested too deeply.", allowed=f"{_DEEPEST} levels")
        if kind is int:
            if _LEAST <= value <= _GREATEST:
                return value
            return msgspec.msgpack.Ext(_LARGE, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        if isinstance(value, list):
            return [self._marked(item, depth + 1) for item in value]
        if isinstance(value, tuple):
            return self._extension(_TUPLE, list(value), depth)
        if isinstance(value, set | frozenset):
            # Sorted, so that equal sets are equal bytes.
            items = sorted(value, key=repr)
            return self._extension(_SET if isinstance(value, set) else _FROZENSET, items, depth)
        if isinstance(value, dict):
            pairs = [(self._marked(key, depth + 1), self._marked(item, depth + 1)) for key, item in value.items()]
            if all(type(key) in (str, int, bytes) for key, _ in pairs):
                return dict(pairs)
            return self._extension(_OBJECT, ["dict", *(part for pair in value.items() for part in pair)], depth)
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value.__index__() if isinstance(value, int) else float(value)
        names = _field_names(value)
        if names is not None and self._classes.get(kind.__qualname__) is kind:
            return self._extension(_OBJECT, [kind.__qualname__, *(getattr(value, name) for name in names)], depth)
        raise BadValueError(
            "Only plain values are kept and sent.",
            given=kind.__qualname__,
            allowed="numbers, text, bytes, None, tuples, lists, sets, dicts, messages, dataclasses of the algorithm",
        )

    def _extension(self, code: int, items: list[Any], depth: int) -> msgspec.msgpack.Ext:
        marked = [self._marked(item, depth + 1) for item in items]
        return msgspec.msgpack.Ext(code, self._encoder.encode(marked))

    def _unmarked(self, code: int, data: memoryview) -> Any:
        if code == _LARGE:
            return int.from_bytes(data, "big", signed=True)
        items = self._decoder.decode(data)
        if code == _TUPLE:
            return tuple(items)
        if code == _SET:
            return set(items)
        if code == _FROZENSET:
            return frozenset(items)
        if code != _OBJECT:
            raise ValueError(f"unknown mark {code}")
        name, *values = items
        if name == "dict":
            return dict(zip(values[::2], values[1::2], strict=True))
        kind = self._classes.get(name)
        if kind is None:
            raise ValueError(f"unknown class {name!r}")
        return _rebuilt(kind, values)


def _field_names(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(item.name for item in dataclasses.fields(value))
    return None


def _rebuilt(kind: type, values: list[Any]) -> Any:
    if issubclass(kind, msgspec.Struct):
        return kind(**dict(zip(kind.__struct_fields__, values, strict=True)))
    made = object.__new__(kind)
    for item, value in zip(dataclasses.fields(kind), values, strict=True):  # type: ignore[arg-type]
        object.__setattr__(made, item.name, value)
    # What a class demands of its parameters holds for those that came over a wire as well.
    check = getattr(made, "__post_init__", None)
    if check is not None:
        try:
            check()
        except (WavetankError, ValueError, TypeError) as error:
            raise ValueError(f"{kind.__qualname__}: {error}") from error
    return made


def codec_of(algorithm: Algorithm) -> ValueCodec:
    """Return the codec that knows an algorithm's messages, the classes of its module, networks and faults."""
    return codec_of_module(type(algorithm).__module__, algorithm.messages)


def codec_of_module(name: str, messages: Iterable[type] = ()) -> ValueCodec:
    """Return the codec that knows the messages and dataclasses of a module, networks and faults.

    Of a module that was never imported (code that was executed from a text) the messages alone are known.
    """
    homes = (network, faults, *filter(None, (sys.modules.get(name),)))
    named = [
        kind
        for home in homes
        for kind in vars(home).values()
        if isinstance(kind, type) and (issubclass(kind, Message) or dataclasses.is_dataclass(kind))
    ]
    return ValueCodec([*named, *messages])


def state_of(node: Node) -> dict[str, Any]:
    """Return the fields of a node by name: its volatile state, without its context."""
    slots = [name for kind in type(node).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*slots, *getattr(node, "__dict__", ())]
    return {name: getattr(node, name) for name in names if name != "context" and hasattr(node, name)}


def with_state(node: Node, state: dict[str, Any]) -> Node:
    """Give a new node the fields that :func:`state_of` took from another; returns it."""
    for name, value in state.items():
        # A node may be a frozen dataclass with mutable parts.
        object.__setattr__(node, name, value)
    return node
