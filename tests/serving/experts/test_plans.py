"""Matching and filling against brute force; tables against shares counted by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.serving.experts.counting import main_device
from wavetank.serving.experts.interface import Batch, Seen
from wavetank.serving.experts.plans import ByTables, ByTruth, Composed, InTurns, filled, matched, profile, tables
from wavetank.serving.experts.traces import Generated

TRACE = Generated(requests=20, tokens=9, layers=3, experts=8, per_token=2, vocabulary=12, topics=2).trace(2)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_matching_is_the_best_of_all(requests: int, devices: int, seed: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 9, (requests, devices)).astype(float)
    found = matched(scores)
    room = -(-requests // devices)
    allowed = [
        each
        for each in itertools.product(range(devices), repeat=requests)
        if max(map(each.count, range(devices))) <= room
    ]
    assert tuple(found) in allowed
    best = max(sum(scores[row, at] for row, at in enumerate(each)) for each in allowed)
    assert scores[np.arange(requests), found].sum() == best


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_tokens_have_their_best_device_while_it_has_room(tokens: int, devices: int, seed: int) -> None:
    scores = np.random.default_rng(seed).random((tokens, devices))
    found = filled(scores)
    room = -(-tokens // devices)
    assert np.bincount(found, minlength=devices).max() <= room
    wanted = scores.argmax(axis=1)
    for device in range(devices):
        wanting = np.flatnonzero(wanted == device)
        got = wanting[found[wanting] == device]
        assert len(got) >= min(len(wanting), room)
        lost = wanting[found[wanting] != device]
        if len(lost):
            assert scores[got].max(axis=1).min() >= scores[lost].max(axis=1).max()


def test_in_turns_is_one_after_another_and_equal_pieces() -> None:
    turns = InTurns(3)
    assert turns.send([Seen(np.array([1]))] * 5).tolist() == [0, 1, 2, 0, 1]
    assert turns.split(0, Batch(np.zeros(7, np.int64), np.zeros((2, 7), np.int64))).tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_tables_hold_shares_of_what_was_seen() -> None:
    experts = np.stack([np.random.default_rng(4).permutation(np.arange(8) // 4) for _ in range(3)])
    found = tables(TRACE, experts, 2, votes="shares")
    times, uses = profile(TRACE)
    assert uses.sum() == TRACE.routes.size
    for token in range(12):
        here = TRACE.tokens == token
        assert times[token] == here.sum()
        for layer in range(3):
            places = experts[layer][TRACE.routes[layer, here]]
            shares = [float(np.mean(places == device)) if here.any() else 0.0 for device in range(2)]
            assert found.expected[layer, token] == pytest.approx(shares)
    assert found.votes == pytest.approx(found.expected.mean(axis=0))
    main = [main_device(experts[layer][TRACE.routes[layer]], 2) for layer in range(3)]
    for last in range(2):
        for older in range(2):
            here = (main[1] == last) & (main[0] == older)
            share = np.mean(experts[2][TRACE.routes[2, here]] == 0)
            assert found.after[2, last, older, 0] == pytest.approx(share)
    # Before the first layer there is none: the index -1 is the last one.
    assert found.after[0, -1, -1, 0] == pytest.approx(np.mean(experts[0][TRACE.routes[0]] == 0))
    assert found.after[0, 0].sum() == 0


def test_votes_are_labels_or_weighted_ones_and_none_for_unseen_tokens() -> None:
    experts = np.tile(np.arange(8) // 4, (3, 1))
    part = TRACE.part([0])
    shares, labels, weighted = (
        tables(part, experts, 2, votes=each).votes for each in ("shares", "labels", "confidence")
    )  # fmt: skip
    known = np.isin(np.arange(12), part.tokens)
    assert (labels[known].sum(axis=1) == 1).all()
    assert (weighted.max(axis=1) == shares.max(axis=1)).all()
    assert not known.all()
    for each in (shares, labels, weighted):
        assert (each[~known] == 0).all()


def test_the_surer_of_token_and_sequence_decides() -> None:
    expected = np.zeros((1, 2, 2))
    expected[0, 0] = [0.6, 0.4]
    after = np.zeros((1, 3, 3, 2))
    after[0, 1, 1] = [0.2, 0.8]
    after[0, 0, 0] = [0.55, 0.45]
    plan = ByTables(np.zeros((2, 2)), expected, after)
    batch = Batch(np.array([0, 0, 1, 1]), np.array([[1, 0, 0, 1], [1, 0, 0, 1]]))
    assert plan.split(0, batch).tolist() == [1, 0, 0, 1]


def test_the_truth_keeps_most_routes() -> None:
    experts = np.tile(np.arange(8) // 4, (3, 1))
    plan = Composed(experts, ByTruth(experts, 2))
    routes = np.zeros((3, 2, 2), np.int64)
    routes[..., 1] = 1
    assert plan.send([Seen(np.array([1]), routes + 4), Seen(np.array([1]), routes)]).tolist() == [1, 0]
    batch = Batch(np.zeros(2, np.int64), np.zeros((2, 2), np.int64), np.array([[5, 6], [0, 1]]))
    assert plan.split(0, batch).tolist() == [1, 0]
