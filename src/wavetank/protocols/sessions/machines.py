"""Local machines: what one role does, as a finite state machine, and the local type it can be read as.

A state receives, sends (an internal choice), does either (a mixed state, where a race begins) or ends.  For every mix
the machine knows its abort target: the state from which it goes on along the right side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One thing a role may do in a state.

    Parameters
    ----------
    sends : bool
        Whether it sends; otherwise it receives.
    partner : str
        The other role.
    label : str
    payload : tuple of str
        Types, each with its name and refinement where there are such.
    target : int
        State it leads to.
    settles : (int, str) or None
        For sending the first message of a side of a mix: the mix and the side, ``left`` or ``right``.
    through : tuple of (int, str)
        For receiving: the sides of mixes, not passed yet, on which alone this message stands.
    irreversible : bool
        Marked as what cannot be taken back.
    """

    sends: bool
    partner: str
    label: str
    payload: tuple[str, ...]
    target: int
    settles: tuple[int, str] | None = None
    through: tuple[tuple[int, str], ...] = ()
    irreversible: bool = False

    def __str__(self) -> str:
        return f"{self.partner}{'!' if self.sends else '?'}{self.label}({', '.join(self.payload)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state of a local machine.

    Parameters
    ----------
    transitions : tuple of Transition
        Empty in the end state.
    ends : bool
        Whether the role may stay here for ever.
    """

    transitions: tuple[Transition, ...]
    ends: bool = False

    @property
    def kind(self) -> str:
        """Return ``end``, ``receive``, ``send`` or ``mixed``."""
        ways = {transition.sends for transition in self.transitions}
        if not ways:
            return "end"
        return "mixed" if len(ways) == 2 else "send" if ways == {True} else "receive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one role of a protocol does.

    Parameters
    ----------
    protocol, role : str
    states : tuple of State
        State 0 is the start.
    aborts : dict
        Mix to the state in which its right side begins for this role; without the mixes it arbitrates.
    mixes : dict
        Number of a mix to its name.
    """

    protocol: str
    role: str
    states: tuple[State, ...]
    aborts: dict[int, int] = field(default_factory=dict)
    mixes: dict[int, str] = field(default_factory=dict)

    def partners(self) -> tuple[str, ...]:
        """Return the roles this one exchanges messages with, sorted."""
        return tuple(sorted({each.partner for state in self.states for each in state.transitions}))

    def transitions(self) -> Iterator[tuple[int, Transition]]:
        """Yield every transition with the state it starts from."""
        for number, state in enumerate(self.states):
            for transition in state.transitions:
                yield number, transition

    def local_type(self) -> str:
        """Return the machine as a local type, in the notation of the field.

        Examples
        --------
        >>> step = Transition(sends=True, partner="q", label="data", payload=("int",), target=1)
        >>> end = State(transitions=(), ends=True)
        >>> print(Machine(protocol="P", role="p", states=(State(transitions=(step,)), end)).local_type())
        q!data(int).end
        """
        return _LocalTypeText(self).text()


class _LocalTypeText:
    """Writes a machine as text: a state that a loop comes back to, or that several lead to, gets a name."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        arrivals = [0] * len(machine.states)
        for _, transition in machine.transitions():
            arrivals[transition.target] += 1
        arrivals[0] += 1
        self.named = {
            number for number, count in enumerate(arrivals) if count > 1 and machine.states[number].transitions
        }
        self.written: set[int] = set()

    def text(self) -> str:
        parts = [self.state(0)]
        # A state that several lead to is written once, below; abort targets stand where no transition leads.
        waiting = [number for number in sorted(self.named) if number not in self.written]
        waiting += [number for number in self.machine.aborts.values() if number not in self.written]
        while waiting:
            number = waiting.pop(0)
            if number in self.written or not self.machine.states[number].transitions:
                continue
            self.named.add(number)
            parts.append(self.state(number))
            waiting += [each for each in sorted(self.named) if each not in self.written]
        for mix, target in sorted(self.machine.aborts.items()):
            begins = f"X{target}" if self.machine.states[target].transitions else "end"
            parts.append(f"{self.machine.mixes.get(mix, mix)} interrupted: {begins}")
        return "\n".join(parts)

    def state(self, number: int) -> str:
        self.written.add(number)
        text = self.options(number)
        return f"X{number} = {text}" if number in self.named else text

    def options(self, number: int) -> str:
        state = self.machine.states[number]
        if not state.transitions:
            return "end"
        texts = []
        for transition in state.transitions:
            target = transition.target
            if target in self.named:
                rest = f"X{target}"
            else:
                self.written.add(target)
                rest = self.options(target)
            texts.append(f"{transition}.{rest}")
        if state.ends:
            texts.append("end")
        joint = {"send": " + ", "receive": " & ", "mixed": " > "}[state.kind]
        return texts[0] if len(texts) == 1 else f"{{ {joint.join(texts)} }}"
