"""Study ``reuse-agreement``: what a model answers when rows of its cache stood elsewhere before."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import missing_extra
from wavetank.serving.reuse.interface import Reuse
from wavetank.serving.reuse.irminsul import Irminsul
from wavetank.serving.reuse.moving_rivals import CacheBlend, UnturnedRows
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

# As many bytes of the library are trained on; prompts are of what stands behind.
_TRAINED_ON, _HELD_OUT = 1_000_000, 1_500_000
_SIZES: dict[str, Any] = {
    "layers": 3, "width": 96, "heads": 4, "head_width": 24, "attention": "mla", "latent": 48, "rotary": 16,
    "hidden": 192, "experts": 8, "expert_hidden": 48,
}  # fmt: skip
_LENGTH = 768
# Prompts are short here, and so are segments.
_CUT = Irminsul(bits=5, least=16, most=128, again=0)


@dataclass(frozen=True, kw_only=True)
class ReuseAgreement(Study):
    """A small decoder with latent attention and experts, trained on Python's library in about a minute and kept, serves
    pieces of the library that it has not seen, byte by byte.  Each comes once as it is; then with something inserted,
    with something missing, and with two parts exchanged.  What follows is predicted with reused rows and with a full
    computation, both times along the true text.  Segments have 16 to 128 tokens, for all rules alike.
    """

    name: ClassVar[str] = "reuse-agreement"
    baseline: ClassVar[str] = "cache-blend"
    primary: ClassVar[str] = "kl_nats"
    secondary: ClassVar[tuple[str, ...]] = ("top1_agreement", "computed_share")
    in_process: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("kl_nats", "nats", "lower", "counted", "Kullback-Leibler divergence of the prediction with reused rows "
               "from that of a full computation, mean of tokens", words="divergence from a full computation"),
        Metric("top1_agreement", "", "higher", "counted", "share of tokens after which both find one next likeliest",
               words="same likeliest token"),
        Metric("top10_overlap", "", "higher", "counted", "share of the ten likeliest next tokens that both have, mean"),
        Metric("loss_nats", "nats", "lower", "counted", "by how much the true next token is less likely than with a "
               "full computation, mean of logarithms"),
        Metric("computed_share", "", "lower", "counted", "tokens computed, those computed again included / tokens"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "What computing heads of moved runs again is worth", y="kl_nats", by="again", log="y",
              says="The rightmost point computes whole runs: a full computation."),
        Chart("pareto", "Divergence against work", x="computed_share", y="kl_nats", says="Lower left is better."),
    )  # fmt: skip

    prompts: int = setting(2, says="Pieces of text, each served four times", low=1, high=1_000)
    prompt_tokens: int = setting(640, unit="tokens", says="Of a piece", low=64, high=700)
    following_tokens: int = setting(48, unit="tokens", says="Predicted behind each", low=2, high=64)
    edit_tokens: int = setting(32, unit="tokens", says="Inserted, or left out", low=1, high=64)
    agains: tuple[int, ...] = setting((0, 16, 1_024), unit="tokens", says="First tokens of moved runs "
                                      "that are computed again, for the chart", low=0, high=1 << 20)  # fmt: skip
    steps: int = setting(250, says="Steps of training", low=0, high=100_000)

    def check(self) -> None:
        """Refuse to run without torch."""
        if importlib.util.find_spec("torch") is None:
            raise missing_extra("torch", "torch", needed_for="A decoder")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "The decoder is small and trained for a minute: what reuse costs a large model does not follow.",
        )

    def served(self, seed: int) -> list[tuple[Any, Any]]:
        """Return prompts and what follows each: four in a row belong together, the first as it is.

        Parameters
        ----------
        seed : int
        """
        from wavetank.kernels.decoder_training import library_text, tokens_of

        text = tokens_of(library_text(_HELD_OUT)[_TRAINED_ON:])
        draws, size, extra = stream(seed, "reuse agreement"), self.prompt_tokens, self.edit_tokens
        found = []
        for _ in range(self.prompts):
            start, other = draws.integers(0, len(text) - 2 * size, 2)
            piece = text[start : start + size]
            following = text[start + size : start + size + self.following_tokens]
            at = int(draws.integers(size // 4, size // 2))
            inserted = np.concatenate([piece[:at], text[other : other + extra], piece[at:]])
            third = size // 3
            swapped = np.concatenate([piece[:third], piece[2 * third :], piece[third : 2 * third]])
            missing = np.concatenate([piece[:at], piece[at + extra :]])
            found += [(piece, following), (inserted, following), (missing, following)]
            found.append((swapped, text[start + 2 * third : start + 2 * third + self.following_tokens]))
        return found

    def measure(self, system: Reuse, seed: int) -> Measurements:
        """Serve pieces of text and predict what follows.

        Parameters
        ----------
        system : Reuse
        seed : int
        """
        import torch

        from wavetank.kernels.decoder import DecoderConfig
        from wavetank.kernels.decoder_training import trained
        from wavetank.serving.reuse.agreement import execute

        weights = trained(DecoderConfig(**_SIZES), steps=self.steps, size=_TRAINED_ON, length=_LENGTH, batch=2)
        served, found = self.served(seed), Measurements()
        groups = [served[start : start + 4] for start in range(0, len(served), 4)]
        with torch.no_grad():
            full = [execute(weights, [text for text, _ in group], None) for group in groups]
            for name, value in _figures(system, weights, groups, full).items():
                found.put(name, value)
            if isinstance(system, Irminsul):
                for again in self.agains:
                    for name, value in _figures(replace(system, again=again), weights, groups, full).items():
                        found.put(name, value, again=float(again))
        return found


def _figures(system: Reuse, weights: Any, groups: Sequence[Any], full: Sequence[Any]) -> dict[str, float]:
    from wavetank.serving.reuse.agreement import agreement, execute

    rule, share = None, 0.0
    if isinstance(system, UnturnedRows | Irminsul):
        rule = replace(_CUT, again=system.again)
    elif isinstance(system, CacheBlend):
        rule, share = _CUT, system.share
    found, computed, tokens = [], 0, 0
    for group, true in zip(groups, full, strict=True):
        texts = [text for text, _ in group]
        ours = execute(weights, texts, rule, share=share, turned=not isinstance(system, UnturnedRows))
        for number in (1, 2, 3):
            found.append(agreement(weights, ours[number], true[number], group[number][1]))
            computed += ours[number].computed
            tokens += len(texts[number])
    top1, top10, divergence, loss = np.mean(found, axis=0).tolist()
    return {
        "kl_nats": divergence, "top1_agreement": top1, "top10_overlap": top10, "loss_nats": loss,
        "computed_share": computed / tokens,
    }  # fmt: skip
