"""Options of compiled functions that own nothing.

A compiled function counts a reference to every array that it is given, and takes it back at its end: for each array of
each tuple, at every call, even where the call is built in.  A simulator that hands tuples of dozens of arrays from
function to function spends more time on that than on all else.  These options leave it out, where the caller holds
the arrays meanwhile.
"""

from __future__ import annotations

from typing import Any

BORROWED: dict[str, Any] = {"_nrt": False}
"""For ``compiled`` and ``njit``: arrays belong to the caller.  The function, and all that it calls, must make none of
its own; numba refuses to compile one that does."""
