"""Protocols with mixed choice to start from: ``race``, ``third_party``, ``stream``, ``amqp_client``."""

from __future__ import annotations

import importlib.resources

from wavetank.errors import unknown_name

NAMES = ("race", "third_party", "stream", "amqp_client")


def example(name: str) -> str:
    """Return the text of an example.

    Raises
    ------
    UnknownNameError
    """
    if name not in NAMES:
        raise unknown_name("example", name, NAMES)
    return importlib.resources.files(__name__).joinpath(f"{name}.nuscr").read_text(encoding="utf-8")
