"""Studies of the protocols area."""
