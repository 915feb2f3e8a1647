from __future__ import annotations

import pytest

from wavetank.text import plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("``slowdown`` times", "slowdown times"),
        ("see :mod:`wavetank.sim`", "see wavetank.sim"),
        ("see :class:`~wavetank.kernels.SpMVPlan`.", "see SpMVPlan."),
        (":py:attr:`Form.key` decides", "Form.key decides"),
        ("see :doc:`the guide <guide>`", "see guide"),
        ("a single `mark` and a time 12:30", "a single `mark` and a time 12:30"),
    ],
)
def test_marks_for_code_and_references_go_and_the_words_stay(text: str, words: str) -> None:
    assert plain(text) == words
