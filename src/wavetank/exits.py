"""Exit codes of the command line."""

from __future__ import annotations

DOES_NOT_HOLD = 1
UNDECIDED = 2
USAGE = 3
DEFECT = 4
INTERRUPTED = 130
NO_READER = 141
