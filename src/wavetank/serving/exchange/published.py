"""The table of the paper on relay-free exchange, and a small model of its machine that gives it.

A time is a number of phases, each as long as starting an operator and waiting for a word, and what the vectors take: on
the links, and, where outputs are copied on their way, in memory. Five constants are fitted to ten of the table's
sixteen cells; the other six are held out, four of them combines, which the wire does not change.
How many tokens the table is for is not known, so that the constants of
vectors are for its number of tokens, whichever it is.

What the fit says of the paper's machine: dispatch with and without relay grows alike with the vector, so that all it
saves are phases; in the combine a tenth of what vectors take is the copies'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wavetank.errors import BadValueError

WIRES = ("bf16", "int8")
HIDDEN = (4096, 7168)
_MICRO = 1e-6

# Operator, wire, numbers of a vector to microseconds: with relay buffers, without.
TABLE: Mapping[tuple[str, str, int], tuple[float, float]] = {
    ("dispatch", "bf16", 4096): (94.95, 73.81),
    ("dispatch", "bf16", 7168): (124.73, 104.48),
    ("dispatch", "int8", 4096): (88.62, 59.46),
    ("dispatch", "int8", 7168): (101.06, 71.48),
    ("combine", "bf16", 4096): (59.88, 46.03),
    ("combine", "bf16", 7168): (89.76, 70.23),
    ("combine", "int8", 4096): (61.88, 46.02),
    ("combine", "int8", 7168): (91.41, 69.80),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What phases and vectors take on the paper's machine.

    Parameters
    ----------
    phase_s : float
    dispatch_s_per_kib, combine_s_per_kib : float
        For each 1024 bytes of a vector as it travels.
    copy_s_per_kib : float
        What copies of outputs add, in a combine with buffers.
    quantise_s : float
    """

    phase_s: float = 11.75e-6
    dispatch_s_per_kib: float = 4.80e-6
    combine_s_per_kib: float = 4.22e-6
    copy_s_per_kib: float = 0.43e-6
    quantise_s: float = 6.8e-6

    def operator_s(self, operator: str, wire: str, hidden: int, *, relay: bool) -> float:
        """Return the modelled time of a dispatch or a combine.

        Parameters
        ----------
        operator : str
            ``dispatch``: count, pack, send, wait, put in order, or place, send the word, wait; ``combine``: two phases
            with relay, one without.
        wire : str
            ``bf16``, or ``int8``, which shortens what is dispatched; outputs come back as ``bf16``.
        hidden : int
            Numbers of a vector.
        relay : bool

        Raises
        ------
        BadValueError
            If there is no such operator or wire, or a vector has no number.
        """
        if operator not in ("dispatch", "combine") or wire not in WIRES:
            raise BadValueError("The model has no such operator.", given=f"{operator}, {wire}",
                                allowed="dispatch or combine, bf16 or int8")  # fmt: skip
        if isinstance(hidden, bool) or not isinstance(hidden, int) or hidden < 1:
            raise BadValueError("A vector has numbers.", given=hidden, allowed="1 or more", where="hidden")
        if operator == "combine":
            each = self.combine_s_per_kib + (self.copy_s_per_kib if relay else 0.0)
            return (2 if relay else 1) * self.phase_s + 2 * hidden / 1024 * each
        sent = hidden / 1024 * (2 if wire == "bf16" else 1) * self.dispatch_s_per_kib
        return (5 if relay else 3) * self.phase_s + sent + (self.quantise_s if wire == "int8" else 0.0)


def deviation(operator: str, wire: str, hidden: int, *, relay: bool) -> float:
    """Return how far the model is from a cell of the table, as a share of it.

    Raises
    ------
    BadValueError
        If the table has no such cell.
    """
    cell = TABLE.get((operator, wire, hidden))
    if cell is None:
        raise BadValueError("The table has no such cell.", given=f"{operator}, {wire}, {hidden}",
                            allowed=[", ".join(map(str, key)) for key in TABLE])  # fmt: skip
    published_s = cell[0 if relay else 1] * _MICRO
    return abs(Machine().operator_s(operator, wire, hidden, relay=relay) / published_s - 1.0)
