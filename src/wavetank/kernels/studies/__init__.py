"""Studies of the kernels area."""
