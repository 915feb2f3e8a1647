"""Reinforcement learning, once for all: policies that are trained on a simulator and then run on numpy alone.

A simulator offers an :class:`Environment`: observations and one row of actions between -1 and 1.  :func:`train` runs
proximal policy optimisation (stable-baselines3, on one torch thread) and returns a :class:`Network`, the weights of the
policy's mean as plain arrays.  A network decides in microseconds, needs neither torch nor gymnasium, and is kept as an
``.npz`` file without pickled objects.  Equal seeds give equal networks on one machine and one version of the libraries.

Source: J. Schulman et al., "Proximal Policy Optimization Algorithms", arXiv 1707.06347, 2017.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError, BadValueError, missing_extra
from wavetank.settings import check_ranges, setting

Floats = npt.NDArray[np.float64]

OBSERVED = 5.0
"""Observations are clipped to this magnitude, in training and after."""
_FORMAT = 1
_LARGEST_BYTES = 16_000_000
_MOST_LAYERS = 16


class Environment(Protocol):
    """A simulator that is learned from.

    Attributes
    ----------
    observations, actions : int
        Lengths of the rows of observations and of actions.
    """

    observations: int
    actions: int

    def reset(self, seed: int) -> Floats:
        """Begin an episode and return the first observation; equal seeds give equal episodes."""
        ...

    def step(self, action: Floats) -> tuple[Floats, float, bool]:
        """Act, each action between -1 and 1, and return observation, reward and whether the episode has ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a policy is trained: proximal policy optimisation with a network of two hidden layers of tanh units."""

    steps: int = setting(100_000, unit="steps", says="Steps of the environment in all", low=1, high=10**9)
    hidden: int = setting(64, says="Units of each of the two hidden layers", low=1, high=4096)
    rollout: int = setting(2048, unit="steps", says="Steps between two updates", low=2, high=10**6)
    epochs: int = setting(4, says="Passes over the steps of an update", low=1, high=100)
    batch: int = setting(64, says="Steps of a minibatch", low=2, high=10**6)
    learning_rate: float = setting(3e-4, says="Step size of the optimiser", low=1e-8, high=1.0)
    gamma: float = setting(0.95, says="Discount per step", low=0.0, high=1.0)
    trace: float = setting(0.95, says="Decay of the advantage's trace (lambda)", low=0.0, high=1.0)
    clip: float = setting(0.2, says="Largest change of a probability per update", low=0.01, high=1.0)
    spread: float = setting(1.0, says="Standard deviation of actions at the beginning", low=0.01, high=10.0)
    seed: int = setting(0, says="Seed of weights, actions and episodes", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, eq=False)
class Network:
    """Layers of tanh units with a linear one at the end.

    Attributes
    ----------
    weights : tuple of ndarray of float64, shapes (inputs, outputs)
    biases : tuple of ndarray of float64, shapes (outputs,)
    """

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    def __post_init__(self) -> None:
        shapes = [(each.shape, bias.shape) for each, bias in zip(self.weights, self.biases, strict=False)]
        following = zip(self.weights, self.weights[1:], strict=False)
        chained = all(one.shape[-1] == other.shape[0] for one, other in following)
        right = all(len(shape) == 2 and bias == shape[1:] for shape, bias in shapes)
        finite = all(np.all(np.isfinite(each)) for each in (*self.weights, *self.biases))
        if not shapes or len(self.weights) != len(self.biases) or not right or not chained or not finite:
            raise BadValueError(
                "These layers do not make a network.", given=str(shapes),
                allowed="finite weights of shapes (a, b), (b, c), ... and biases of shapes (b,), (c,), ...",
            )  # fmt: skip

    @property
    def observations(self) -> int:
        """Length of an observation."""
        return int(self.weights[0].shape[0])

    def __call__(self, observation: Floats) -> Floats:
        """Return the mean actions for an observation, each between -1 and 1.

        Parameters
        ----------
        observation : ndarray of float64, shape (observations,)
        """
        found = np.clip(observation, -OBSERVED, OBSERVED)
        for weights, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            found = np.tanh(found @ weights + bias)
        return np.clip(found @ self.weights[-1] + self.biases[-1], -1.0, 1.0)

    def save(self, path: Path) -> None:
        """Write the layers as an ``.npz`` file of single-precision arrays; a reader sees the old file or the new one.

        Raises
        ------
        OSError
            If the file cannot be written; a file of that name stays as it was.
        """
        layers: dict[str, Any] = {"format": np.array(_FORMAT)}
        for i, (weights, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            layers |= {f"weights_{i}": weights.astype(np.float32), f"bias_{i}": bias.astype(np.float32)}
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                np.savez(file, **layers)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def load_network(path: Path, *, observations: int, actions: int) -> Network:
    """Read a network that :meth:`Network.save` wrote; no pickled object is ever loaded.

    Parameters
    ----------
    path : Path
    observations, actions : int
        What it must take and give.

    Raises
    ------
    BadFileError
        If the file is missing, too large, damaged, of another format, or holds another network.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise BadFileError("This file of weights is too large.", given=path.stat().st_size,
                               allowed=f"at most {_LARGEST_BYTES} bytes", where=str(path))  # fmt: skip
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(each.file_size for each in archive.infolist())
        if unpacked > _LARGEST_BYTES:
            raise BadFileError("This file of weights is too large.", given=unpacked,
                               allowed=f"at most {_LARGEST_BYTES} bytes", where=str(path))  # fmt: skip
        with np.load(path, allow_pickle=False) as found:
            if "format" not in found or found["format"].shape or int(found["format"]) != _FORMAT:
                raise BadFileError("This file of weights has another format.", allowed=str(_FORMAT), where=str(path))
            count = sum(name.startswith("weights_") for name in found.files)
            if count > _MOST_LAYERS:
                raise BadFileError("This network has too many layers.", given=count, where=str(path))
            network = Network(
                tuple(found[f"weights_{i}"].astype(np.float64) for i in range(count)),
                tuple(found[f"bias_{i}"].astype(np.float64) for i in range(count)),
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, BadValueError) as error:
        raise BadFileError(f"The weights of a policy cannot be read: {error}", where=str(path)) from error
    shape = (network.observations, int(network.weights[-1].shape[1]))
    if shape != (observations, actions):
        raise BadFileError(
            "This network is for another task.", given=f"{shape[0]} observations, {shape[1]} actions",
            allowed=f"{observations} observations, {actions} actions", where=str(path),
        )  # fmt: skip
    return network


def train(
    make: Callable[[], Environment], training: Training, *, report: Callable[[int, float], object] | None = None
) -> Network:
    """Train a policy and return its mean as a network.

    Parameters
    ----------
    make : callable
        Makes the environment.
    training : Training
    report : callable, optional
        Called after each update with the steps so far and the mean reward per step of the last update.

    Raises
    ------
    MissingExtraError
        If gymnasium, stable-baselines3 or torch is not installed.
    """
    try:
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
    except ImportError as error:
        raise missing_extra(error.name or "stable-baselines3", "learning", needed_for="Training a policy") from None

    class Reporting(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            if report is not None:
                report(self.num_timesteps, float(np.mean(self.locals["rollout_buffer"].rewards)))

    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]):
            model = PPO(
                "MlpPolicy", as_gymnasium(make(), training.seed), device="cpu", seed=training.seed, verbose=0,
                n_steps=training.rollout, n_epochs=training.epochs, batch_size=training.batch,
                learning_rate=training.learning_rate, gamma=training.gamma, gae_lambda=training.trace,
                clip_range=training.clip,
                policy_kwargs={"net_arch": [training.hidden, training.hidden], "activation_fn": torch.nn.Tanh,
                               "log_std_init": float(np.log(training.spread))},
            )  # fmt: skip
            model.learn(training.steps, callback=Reporting())
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(deterministic)
    layers = [each for each in model.policy.mlp_extractor.policy_net if isinstance(each, torch.nn.Linear)]
    layers.append(model.policy.action_net)
    return Network(
        tuple(each.weight.detach().numpy().T.astype(np.float64) for each in layers),
        tuple(each.bias.detach().numpy().astype(np.float64) for each in layers),
    )


def as_gymnasium(environment: Environment, seed: int) -> Any:
    """Return an environment in the form of gymnasium; its n-th episode has the seed ``seed + n``.

    Raises
    ------
    MissingExtraError
        If gymnasium is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        raise missing_extra("gymnasium", "learning", needed_for="Training a policy") from None

    def seen(observation: Floats) -> Any:
        return np.clip(observation, -OBSERVED, OBSERVED).astype(np.float32)

    class Wrapped(gymnasium.Env):  # type: ignore[misc]
        observation_space = gymnasium.spaces.Box(-OBSERVED, OBSERVED, (environment.observations,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (environment.actions,), np.float32)
        episode = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.episode += 1
            return seen(environment.reset(first + self.episode - 1)), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, ended = environment.step(np.asarray(action, dtype=np.float64))
            # An episode ends because time is up, so that what follows it still counts.
            return seen(observation), reward, False, ended, {}

    first = seed
    return Wrapped()
