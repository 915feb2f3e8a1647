"""A router of your own in a study: run it, or ``wavetank compare llm-routing --policy own_policy.py:LeastWork``."""

import tempfile

import numpy as np

import wavetank


class LeastWork:
    """Sends a request to the worker with the least work: prompts that wait, and tokens in its cache."""

    def __init__(self, held_weight: float = 0.05):
        self.held_weight = held_weight

    def choose(self, view, arrival, state, parameters):
        return int(np.argmin(view.waiting_tokens + view.sent_tokens + self.held_weight * view.kv_tokens))

    def initial_state(self, workers):
        return np.zeros(0)

    def parameters(self):
        return np.zeros(0)


if __name__ == "__main__":
    small = {"requests": 400, "workers": 4, "loads": (), "refreshes_s": ()}
    with tempfile.TemporaryDirectory() as folder:
        result = wavetank.compare(
            "llm-routing",
            systems=["vllm-default", "round-robin", LeastWork, LeastWork(held_weight=0.5)],
            seeds=3,
            on="here",
            out=folder,
            **small,
        )
    print(result.answer)
    print(result.summary())
