"""EDN: what histories use of it, and what it must survive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.check.consistency.edn import DEEPEST, Map, Word, forms_of
from wavetank.errors import BadFileError


def test_all_kinds_of_values_are_read():
    text = r"""nil true false 3 -4 2.5 1e3 7N 2.5M :key name "a\"b\nA" \c \newline \u0042 [1 2] (3) #{4} {:a 1}"""
    plain = [None, True, False, 3, -4, 2.5, 1000.0, 7, 2.5, "key", "name", 'a"b\nA', "c", "\n", "B", (1, 2), (3,), (4,)]
    assert list(forms_of(text, "x")) == [*plain, {"a": 1}]


def test_keywords_are_words_and_strings_are_not():
    word, string = forms_of(':a "a"', "x")
    assert isinstance(word, Word)
    assert not isinstance(string, Word)
    assert word == string


def test_commas_comments_tags_and_discarded_forms_leave_nothing():
    assert list(forms_of('; hi\n1,, #_ 2 #_#_ 3 4 #inst "now" #my/tag [5]', "x")) == [1, "now", (5,)]


def test_a_map_knows_where_it_began():
    (vector,) = forms_of("[1 {:a 2}]", "x")
    assert isinstance(vector[1], Map)
    assert vector[1].at == 3


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("[1\n  }", "line 2, column 3", "closes nothing"),
        ("]", "line 1, column 1", "closes nothing"),
        ("1\n(2", "line 2, column 1", "never closed"),
        ("{:a}", "line 1, column 1", "without a value"),
        ('\n "a\\q"', "line 2, column 2", "escape"),
        ('1 "open', "line 1, column 3", "no EDN"),
        ("{[{}] 1}", "line 1, column 1", "cannot be a key"),
        ("[" * (DEEPEST + 1), f"line 1, column {DEEPEST + 1}", "too deeply"),
        ("[#_]", "line 1, column 4", "discard"),
        ("9" * 5000, "line 1, column 1", "too long"),
    ],
)
def test_errors_name_line_and_column(text, where, says):
    with pytest.raises(BadFileError, match=says) as caught:
        list(forms_of(text, "file.edn"))
    assert caught.value.where == f"file.edn, {where}"


def test_a_million_brackets_do_not_exhaust_the_stack():
    with pytest.raises(BadFileError, match="too deeply"):
        list(forms_of("(" * 1_000_000, "x"))


@given(text=st.text(alphabet='[](){}#_"\\:;a1 \n,', max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        list(forms_of(text, "x"))
    except BadFileError as error:
        assert "line" in error.where
