"""Pickles read as data: a machine that knows numbers, text, lists, tuples and dicts, and nothing that could run.

Python's own reader imports and calls whatever a pickle names, so that a file from elsewhere can do anything.  Here an
instruction that is not on a short list ends the reading with an error; no other instruction exists in this module.
A reference to an earlier container gives a copy of it, and from then on nothing can be put into that container: nothing
refers to itself, and what copies add is limited.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from wavetank.errors import BadFileError

LONGEST_BYTES = 1 << 30
_DEEPEST = 64
_LONGEST_INTEGER_BYTES = 16
_SCALARS = (str, int, float, bool, type(None))
_NEWEST_PROTOCOL = 5
_MOST_COPIED = 1 << 22


class _Mark:
    """Where the items of a container begin."""


_MARK = _Mark()


def plain_pickle(data: bytes, where: str = "") -> Any:
    """Return the plain value in a pickle.

    Parameters
    ----------
    data : bytes
    where : str
        What errors call the file.

    Returns
    -------
    dict, list, tuple, str, int, float, bool or None

    Raises
    ------
    BadFileError
        If it holds anything but plain values, is damaged, or has something after its end.
    """
    if len(data) > LONGEST_BYTES:
        raise BadFileError("The pickle is too long.", given=f"{len(data)} bytes", allowed=f"{LONGEST_BYTES} bytes",
                           where=where or None)  # fmt: skip
    machine = _Machine(data)
    try:
        return machine.run()
    except _RefusedError as error:
        raise BadFileError("The pickle holds what is no plain data; it is not executed.", given=str(error),
                           where=where or None) from error  # fmt: skip
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, ValueError, KeyError) as error:
        raise BadFileError("The pickle is damaged.", given=str(error) or type(error).__name__,
                           where=where or None) from error  # fmt: skip


class _RefusedError(Exception):
    pass


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        # By the identity of containers, all of which stay alive in the memo or on the stack.
        self.depth: dict[int, int] = {}
        self.closed: dict[int, Any] = {}
        self.copied = 0
        self.kept: list[Any] = []

    def run(self) -> Any:
        data = self.data
        while True:
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                break
            act = _ACTS.get(code)
            if act is None:
                raise _RefusedError(f"instruction {code:#04x} at byte {self.at - 1}")
            act(self)
        if self.at != len(data):
            raise ValueError(f"{len(data) - self.at} bytes after the end")
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise ValueError("there is not one value")
        return self.stack[0]

    def take(self, many: int) -> bytes:
        end = self.at + many
        if many < 0 or end > len(self.data):
            raise ValueError("cut off")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, form: str) -> Any:
        (value,) = struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))
        return value

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a container has no end")
        return value

    def items(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("a container has no begin")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def container(self, kind: type) -> Any:
        top = self.stack[-1]
        if type(top) is not kind:
            raise ValueError(f"no {kind.__name__} to put into")
        if id(top) in self.closed:
            raise _RefusedError("a container that changes after it was referred to")
        return top

    def deeper(self, container: Any, items: list[Any]) -> None:
        """Refuse nesting that would exhaust those who walk over it."""
        inner = max((self.depth.get(id(item), 0) for item in items if not isinstance(item, _SCALARS)), default=0)
        self.keep(container, max(self.depth.get(id(container), 1), inner + 1))
        if self.depth[id(container)] > _DEEPEST:
            raise _RefusedError(f"nested deeper than {_DEEPEST}")

    def put(self, place: int) -> None:
        if self.stack[-1] is _MARK:
            raise ValueError("nothing to remember")
        self.memo[place] = self.stack[-1]

    def get(self, place: int) -> None:
        self.stack.append(self.copy(self.memo[place]))

    def copy(self, value: Any) -> Any:
        if isinstance(value, _SCALARS):
            return value
        self.closed[id(value)] = value
        self.copied += len(value) + 1
        if self.copied > _MOST_COPIED:
            raise _RefusedError("references to containers, again and again")
        made: Any
        if isinstance(value, dict):
            made = {key: self.copy(item) for key, item in value.items()}
        else:
            made = [self.copy(item) for item in value]
            made = tuple(made) if isinstance(value, tuple) else made
        self.keep(made, self.depth.get(id(value), 1))
        return made

    def keep(self, container: Any, depth: int) -> None:
        """Remember how deep a container is, and keep it, so that its identity stays its own."""
        self.kept.append(container)
        self.depth[id(container)] = depth

    def push_tuple(self, items: list[Any]) -> None:
        made = tuple(items)
        self.deeper(made, items)
        self.stack.append(made)

    def pops(self, many: int) -> list[Any]:
        return [self.pop() for _ in range(many)][::-1]

    def append(self, items: list[Any]) -> None:
        into = self.container(list)
        into.extend(items)
        self.deeper(into, items)

    def set(self, items: list[Any]) -> None:
        into = self.container(dict)
        if len(items) % 2:
            raise ValueError("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, _SCALARS):
                raise _RefusedError("a key that is no text and no number")
            into[key] = value
        self.deeper(into, items[1::2])

    def protocol(self) -> None:
        version = self.number("B")
        if version > _NEWEST_PROTOCOL:
            raise ValueError(f"protocol {version}")

    def frame(self) -> None:
        if self.number("Q") > len(self.data) - self.at:
            raise ValueError("cut off")

    def integer(self) -> None:
        many = self.number("B")
        if many > _LONGEST_INTEGER_BYTES:
            raise _RefusedError(f"an integer of {many} bytes")
        self.stack.append(int.from_bytes(self.take(many), "little", signed=True))

    def text(self, form: str) -> None:
        self.stack.append(self.take(self.number(form)).decode("utf-8", "surrogatepass"))

    def real(self) -> None:
        (value,) = struct.unpack(">d", self.take(8))
        self.stack.append(value)


_ACTS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    0x28: lambda m: m.stack.append(_MARK),
    0x4E: lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    0x4A: lambda m: m.stack.append(m.number("i")),
    0x4B: lambda m: m.stack.append(m.number("B")),
    0x4D: lambda m: m.stack.append(m.number("H")),
    0x8A: _Machine.integer,
    0x47: _Machine.real,
    0x58: lambda m: m.text("I"),
    0x8C: lambda m: m.text("B"),
    0x71: lambda m: m.put(m.number("B")),
    0x72: lambda m: m.put(m.number("I")),
    0x94: lambda m: m.put(len(m.memo)),
    0x68: lambda m: m.get(m.number("B")),
    0x6A: lambda m: m.get(m.number("I")),
    0x5D: lambda m: m.stack.append([]),
    0x61: lambda m: m.append(m.pops(1)),
    0x65: lambda m: m.append(m.items()),
    0x7D: lambda m: m.stack.append({}),
    0x73: lambda m: m.set(m.pops(2)),
    0x75: lambda m: m.set(m.items()),
    0x29: lambda m: m.push_tuple([]),
    0x74: lambda m: m.push_tuple(m.items()),
    0x85: lambda m: m.push_tuple(m.pops(1)),
    0x86: lambda m: m.push_tuple(m.pops(2)),
    0x87: lambda m: m.push_tuple(m.pops(3)),
}
"""Instructions by their code: numbers, text, lists, dicts, tuples and the memory of what was seen."""
