"""Profiles that the tests of edge schedulers share."""

from wavetank.serving.edge.interface import ExitProfile


def profile_of(*latencies, batch=4):
    """Return models with the given latencies by exit, s, whatever the batch."""
    return ExitProfile(
        models=tuple(f"m{i}" for i in range(len(latencies))),
        latency_s=tuple(tuple((each,) * batch for each in exits) for exits in latencies),
        accuracy=tuple(tuple(0.5 + 0.1 * i for i in range(len(exits))) for exits in latencies),
    )
