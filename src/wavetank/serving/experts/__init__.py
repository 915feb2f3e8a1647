"""Which device keeps which expert, and which request or token goes where, so that routes stay on one device.

Expert parallelism sends a token to the devices of its experts and back.  Which experts these are follows mostly from
the token itself, so that experts that are asked for together can be kept together, and requests sent where theirs are.
"""
