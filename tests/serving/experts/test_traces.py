"""Generated routes keep what they were given, and files are read or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.experts.plans import profile
from wavetank.serving.experts.traces import Generated, read_routes

SMALL = Generated(requests=60, tokens=40, layers=2, experts=16, per_token=3, vocabulary=200, topics=4, circle=4)


def favourite_share(affinity: float) -> float:
    """Return the mass on each token's three most frequent experts, of tokens that came often."""
    trace = Generated(requests=200, tokens=60, layers=1, experts=16, per_token=3, vocabulary=50, topics=4,
                      affinity=affinity).trace(1)  # fmt: skip
    times, uses = profile(trace)
    often = times >= 200
    top = np.sort(uses[0][often], axis=1)[:, -3:].sum(axis=1)
    return float((top / (3 * times[often])).mean())


def test_a_token_keeps_its_favourite_experts_with_the_given_probability() -> None:
    # A token that leaves a favourite draws from the 16 experts, its favourites among them.
    assert favourite_share(1.0) == 1.0
    assert favourite_share(0.8) == pytest.approx(0.8, abs=0.06)
    assert favourite_share(0.0) == pytest.approx(3 / 16, abs=0.06)


def test_bound_words_of_a_topic_use_its_circle_alone() -> None:
    for bond, fewest, most in ((1.0, 4, 4), (0.0, 16, 16)):
        kind = Generated(requests=200, tokens=60, layers=1, experts=16, per_token=3, vocabulary=200, topics=4, circle=4,
                         affinity=1.0, bond=bond, common=0.0, second=0.0)  # fmt: skip
        trace = kind.trace(3)
        used = [len(np.unique(trace.routes[0, begin : begin + 60])) for begin in trace.starts[:-1]]
        assert np.median(used) == fewest
        assert max(used) <= most


def test_equal_seeds_are_equal_and_others_are_not() -> None:
    one, same, other = SMALL.trace(1), SMALL.trace(1), SMALL.trace(2)
    assert np.array_equal(one.routes, same.routes)
    assert not np.array_equal(one.tokens, other.tokens)
    assert (one.prompts == 30).all()
    assert np.bincount(one.tokens).argmax() != np.bincount(one.tokens).argmin()


def test_more_experts_per_token_than_experts_are_refused() -> None:
    with pytest.raises(BadValueError, match="more experts"):
        Generated(per_token=17, experts=16).trace(0)
    with pytest.raises(BadValueError, match="topics"):
        Generated(topics=20, vocabulary=10).trace(0)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = SMALL.trace(0)
    file = tmp_path / "routes.npz"
    np.savez(file, tokens=trace.tokens, starts=trace.starts, prompts=trace.prompts,
             routes=trace.routes.astype(np.uint8), experts=16, vocabulary=200)  # fmt: skip
    found = read_routes(file)
    assert np.array_equal(found.routes, trace.routes)
    assert (found.experts, found.vocabulary) == (16, 200)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"routes": None}, "lacks"), ({"tokens": np.array([0.5] * 8)}, "whole numbers"),
        ({"routes": np.zeros((1, 8, 2), np.int8)}, "no routes of tokens"), ({"tokens": np.array([], int)}, "no routes"),
        ({"tokens": np.array([{}] * 8, dtype=object)}, "archive"), ({"experts": 1}, "no routes of tokens"),
        ({"tokens": np.arange(8)[:, None]}, "no routes of tokens"), ({"tokens": np.array(3)}, "no routes of tokens"),
        ({"starts": np.array(8)}, "no routes of tokens"), ({"starts": np.array([[0, 8]])}, "no routes of tokens"),
        ({"experts": np.array([2])}, "one number"), ({"experts": 2**40}, "no routes of tokens"),
        ({"vocabulary": 2**40}, "no routes of tokens"), ({"tokens": np.full(8, 2**60)}, "no routes of tokens"),
    ],
)  # fmt: skip
def test_files_that_hold_no_routes_are_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    arrays: dict[str, Any] = {
        "tokens": np.arange(8), "starts": np.array([0, 8]), "prompts": np.array([3]),
        "routes": np.tile(np.array([0, 1], np.int8), (1, 8, 1)), **changed,
    }  # fmt: skip
    file = tmp_path / "routes.npz"
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(BadFileError, match=says):
        read_routes(file)


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "routes.npz"
    with pytest.raises(BadFileError):
        read_routes(file)
    trace = SMALL.trace(0)
    np.savez_compressed(file, tokens=trace.tokens, starts=trace.starts, prompts=trace.prompts, routes=trace.routes)
    whole = file.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        file.write_bytes(whole[:at])
        with pytest.raises(BadFileError):
            read_routes(file)
    file.write_bytes(b"tokens,experts\n1,2\n")
    with pytest.raises(BadFileError) as caught:
        read_routes(file)
    assert "pickle" not in str(caught.value) + str(caught.value.hint)
