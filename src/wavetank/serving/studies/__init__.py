"""Studies of the serving area."""
