"""QUANTAS 2 in Python: its experiment files, its rounds and channels, and the algorithms that come with it."""
