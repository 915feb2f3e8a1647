"""What one step of training takes.

The simulator of steps (:mod:`wavetank.sim.steps`) is the ground under every plan of this area.  Two studies judge it:
``step-simulator-speed`` says how many operations it simulates per second beside SimPy, ``step-fidelity`` how far its
times are from published formulas and from steps that real ranks took.
"""
