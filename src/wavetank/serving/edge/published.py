"""The profile of three residual networks with four exits, from the figures that EdgeServing's authors published.

Only batches of five were published.  A batch of B is taken to last ``fixed + (1 - fixed) * B / 5`` of that, since small
batches do not fill a device; ``fixed`` is an assumption.
"""

from __future__ import annotations

from wavetank.errors import BadValueError
from wavetank.serving.edge.interface import ExitProfile

MODELS = ("ResNet50", "ResNet101", "ResNet152")
# Latency of a batch of five in ms, and accuracy on CIFAR-10 of exits that were trained together, by model and exit.
_BATCH = 5
_LATENCY_MS = ((1.65, 2.79, 4.20, 5.06), (1.66, 2.79, 8.32, 9.24), (1.67, 3.69, 12.61, 13.53))
_ACCURACY = ((0.5897, 0.7549, 0.8071, 0.8065), (0.5990, 0.7497, 0.8135, 0.8134), (0.5836, 0.7734, 0.8091, 0.8073))


def published_profile(fixed: float = 0.6, max_batch: int = 10) -> ExitProfile:
    """Return the profile.

    Parameters
    ----------
    fixed : float
        Share of the latency of a batch of five that does not depend on the batch.
    max_batch : int

    Raises
    ------
    BadValueError
        If the share is none, or the largest batch has no request.
    """
    if not 0 <= fixed <= 1 or max_batch < 1:
        raise BadValueError("This profile is ill defined.", given=f"a share of {fixed}, batches up to {max_batch}",
                            allowed="a share from 0 to 1, batches of 1 or more")  # fmt: skip
    return ExitProfile(
        models=MODELS,
        latency_s=tuple(
            tuple(
                tuple(ms * 1e-3 * (fixed + (1.0 - fixed) * batch / _BATCH) for batch in range(1, max_batch + 1))
                for ms in exits
            )
            for exits in _LATENCY_MS
        ),
        accuracy=_ACCURACY,
    )
