"""The command line: ``wavetank VERB``.  One module a verb, imported when that verb runs.

Exit codes
----------
0    done; with ``--check`` also: every claim holds, at least in part, or none was asked
1    a claim does not hold here (``--check``)
2    a claim is undecided (``--check``)
3    something the user can put right: a wrong name, value, file or option
4    a defect of Wavetank, or of a system whose trials failed
130  interrupted by Ctrl-C
141  the reader of the output went away
"""

from wavetank.cli.entry import main, run

__all__ = ["main", "run"]
