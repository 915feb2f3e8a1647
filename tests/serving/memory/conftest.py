"""Small traces."""

from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.traffic import make_traffic, regime


def trace(name="steady", requests=12_800, seed=0, load=0.5, **changes):
    return make_traffic((regime(name, requests),), Node(), seed, load=load, **changes)
