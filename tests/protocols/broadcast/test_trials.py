from __future__ import annotations

from collections import Counter

import pytest

from wavetank.protocols.broadcast.adversaries import ADVERSARIES
from wavetank.protocols.broadcast.amortized import Amortized
from wavetank.protocols.broadcast.bracha import Bracha
from wavetank.protocols.broadcast.coded import Coded
from wavetank.protocols.broadcast.hash_bracha import HashBracha
from wavetank.protocols.broadcast.sampled import Sampled
from wavetank.protocols.broadcast.trials import drawn, judged
from wavetank.sim.faults import byzantine_members


def broken(algorithm: Bracha, seeds: range, **settings: tuple[int, ...] | int) -> list[tuple[int, str, str]]:
    found = []
    for seed in seeds:
        setting = drawn(seed, **settings)  # type: ignore[arg-type]
        run = setting.play(algorithm)
        assert run.under_way == 0
        found += [(seed, setting.says, words) for words in judged(algorithm, run).values() if words]
    return found


def test_a_seed_gives_one_run() -> None:
    first, second = (drawn(7).play(Amortized()) for _ in range(2))
    assert first.digest() == second.digest()
    assert drawn(7).faults == drawn(7).faults


def test_settings_cover_all_adversaries_and_never_exceed_f() -> None:
    settings = [drawn(seed, sizes=(4, 5, 7)) for seed in range(200)]
    assert {each.says for each in settings} == set(ADVERSARIES)
    assert {each.size for each in settings} == {4, 5, 7}
    assert all(len(byzantine_members(each.faults)) == (each.size - 1) // 3 for each in settings)
    assert {each.scheduler is None for each in settings} == {True, False}


@pytest.mark.parametrize("algorithm", [Bracha(), HashBracha(), Coded()], ids=lambda each: type(each).__name__)
def test_the_baselines_keep_everything(algorithm: Bracha) -> None:
    assert broken(algorithm, range(300)) == []


@pytest.mark.parametrize(
    "algorithm",
    [Amortized(), Amortized(draw="hash", committee=1), Amortized(window=1), Amortized(optimistic=False)],
    ids=["default", "hash", "narrow-window", "no-optimism"],
)
def test_the_amortized_protocol_keeps_everything(algorithm: Amortized) -> None:
    assert broken(algorithm, range(1000, 1400), broadcasts=5) == []  # type: ignore[arg-type]


def test_larger_sizes_are_sampled() -> None:
    assert broken(Amortized(), range(15), sizes=(31,)) == []  # type: ignore[arg-type]


@pytest.mark.slow
def test_agreement_and_totality_hold_in_a_hundred_thousand_runs() -> None:
    sizes = (4, 4, 4, 4, 4, 4, 5, 5, 5, 6, 6, 7, 7, 10, 31)
    assert broken(Amortized(), range(10**6, 10**6 + 100_000), sizes=sizes) == []  # type: ignore[arg-type]


def test_too_small_a_quorum_is_found_out() -> None:
    found = broken(Amortized(quorum=2), range(300), sizes=(4,))  # type: ignore[arg-type]
    assert any("decided" in words for _, _, words in found)
    assert broken(Bracha(quorum=2), range(300), sizes=(4,))


def test_samples_fail_where_quorums_do_not() -> None:
    kinds = Counter(says for _, says, _ in broken(Sampled(), range(200)))  # type: ignore[arg-type]
    assert sum(kinds.values()) > 0


def test_what_was_delivered_wrongly_is_named() -> None:
    setting = drawn(3)
    run = setting.play(Bracha())
    node = min(run.correct)
    instance = next(instance for who, instance in run.decisions if who == node)
    run.decisions[node, instance] = b"something else"
    assert any(judged(Bracha(), run).values())
