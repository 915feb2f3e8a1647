"""Views of tests."""

import pytest

from wavetank.serving.sharing.interface import Load, Node, Service, View


@pytest.fixture
def view():
    """Return a function that makes a view of two nodes, with radio functions first.

    Services are tuples of node, requests/s, work and deadline; radio functions of node and share.
    """

    def made(radio=((0, 0.3), (1, 0.3)), ai=((0, 1.0, 0.1, 1.0),), sizes=(1.0, 1.0), memory_gb=20.0, **changed):
        nodes = tuple(Node(name=f"n{i}", gpu=size, cpu=size, memory_gb=memory_gb) for i, size in enumerate(sizes))
        services, loads, placement = [], [], []
        for i, (node, share) in enumerate(radio):
            services.append(Service(name=f"r{i}", radio=True, memory_gb=1.0, downtime_s=1.0, deadline_s=1e-3))
            loads.append(Load(rate_per_s=0.0, gpu_s=share, cpu_s=share, spread=0.0, fulfilled=1.0))
            placement.append(node)
        for i, (node, rate, work, deadline) in enumerate(ai):
            services.append(Service(name=f"s{i}", radio=False, memory_gb=5.0, downtime_s=changed.get("downtime_s", 5.0),
                                    deadline_s=deadline))  # fmt: skip
            loads.append(Load(rate_per_s=rate, gpu_s=work, cpu_s=work / 2, spread=0.4,
                              fulfilled=changed.get("fulfilled", 0.5)))  # fmt: skip
            placement.append(node)
        return View(
            time_s=60.0, nodes=nodes, services=tuple(services), placement=tuple(placement),
            moving=(False,) * len(services), loads=tuple(loads),
        )  # fmt: skip

    return made
