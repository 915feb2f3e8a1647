"""Consensus: one log, or one value, that all nodes agree on."""
