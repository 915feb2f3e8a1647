"""``python -m wavetank``: the command line."""

from wavetank.cli import main

main()
