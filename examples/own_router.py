"""A router of your own: first in plain Python, then compiled; both decide the same."""

import numpy as np

from wavetank.serving import Cluster, simulate
from wavetank.serving.routing.interface import choose_function, fits
from wavetank.workloads import generate_requests


class ShortestQueue:
    """Joins the worker with the fewest waiting requests."""

    def choose(self, view, arrival, state, parameters):
        # A worker that takes nothing new, or does not have the model, is passed over.
        queue = np.where(view.takes * view.serves != 0, view.waiting + view.sent_requests, np.inf)
        return int(np.argmin(queue))

    def initial_state(self, workers):
        return np.zeros(0)

    def parameters(self):
        return np.zeros(0)


@choose_function
def shortest_queue(view, arrival, state, parameters):
    best, shortest = 0, np.inf
    for worker in range(view.waiting.size):
        queue = view.waiting[worker] + view.sent_requests[worker]
        if fits(view, worker) and queue < shortest:
            best, shortest = worker, queue
    return best


class CompiledShortestQueue(ShortestQueue):
    """The same rule inside the simulator's loop."""

    choose = staticmethod(shortest_queue)


requests = generate_requests(rate_per_s=40.0, n_requests=2000, seed=7)
runs = [simulate(requests, Cluster(workers=4), router) for router in (ShortestQueue(), CompiledShortestQueue())]
for run in runs:
    metrics = run.metrics()
    print(f"TTFT p99 {metrics['ttft_p99_s']:.3f} s, throughput {metrics['throughput_tokens_per_s']:,.0f} tokens/s")
print("same decisions:", bool((runs[0].worker == runs[1].worker).all()))
