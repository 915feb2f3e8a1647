"""Languages, and the words that protocols are tried on."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.populations.exact_check import words
from wavetank.protocols.populations.languages import Language, SequentialReader, known_languages
from wavetank.protocols.populations.syntactic_monoid import Automaton

TRUTHS = {
    "first letter a": lambda word: word[0] == "a",
    "some a": lambda word: "a" in word,
    "a*b*": lambda word: "ba" not in word,
    "a then later b": lambda word: "b" in word[word.find("a") :] if "a" in word else False,
    "at least three a": lambda word: word.count("a") >= 3,
    "even number of a": lambda word: word.count("a") % 2 == 0,
    "(ab)*": lambda word: word == "ab" * (len(word) // 2),
    "some aa": lambda word: "aa" in word,
    "more a than b": lambda word: word.count("a") > word.count("b"),
    "a^n b^n": lambda word: word == "a" * (len(word) // 2) + "b" * (len(word) // 2),
    "palindromes": lambda word: word == word[::-1],
}


def test_languages_contain_what_their_names_say():
    assert [language.name for language in known_languages()] == list(TRUTHS)
    for language in known_languages():
        for word in words("ab", 6):
            assert language.contains(word) == TRUTHS[language.name]("".join(word)), (language.name, word)


@pytest.mark.parametrize("n", [2, 7, 12])
def test_members_are_members_and_have_the_length_asked_for(n):
    for language in known_languages():
        for seed in range(5):
            member = language.word_in(n, np.random.default_rng(seed))
            if member is not None:
                assert len(member) == n
                assert language.contains(member)


def test_lengths_without_members_are_told():
    odd = np.random.default_rng(0)
    lacking = [language.name for language in known_languages() if language.word_in(5, odd) is None]
    assert lacking == ["(ab)*", "a^n b^n"]


def test_members_of_a_regular_language_are_drawn_evenly():
    language = Language.regular("a*b*", "a*b*")
    rng = np.random.default_rng(1)
    seen = {language.word_in(3, rng) for _ in range(200)}
    assert {"".join(word) for word in seen if word} == {"aaa", "aab", "abb", "bbb"}


def test_a_changed_member_differs_in_one_letter():
    language = known_languages()[0]
    _, member, changed = language.words(9, np.random.default_rng(2))
    assert sum(one != other for one, other in zip(member, changed, strict=True)) == 1


def test_only_regular_languages_have_a_monoid():
    assert {language.name for language in known_languages() if language.monoid is None} == {
        "more a than b", "a^n b^n", "palindromes",
    }  # fmt: skip


def test_the_reader_reads_every_letter_once_and_is_no_population():
    language = Language("even", ("a",), Automaton.from_regex("(aa)*", "a"))
    assert SequentialReader().read(language, "aaaa") == (True, 4)
    assert SequentialReader().protocol(language) is None


def test_a_language_without_definition_is_refused():
    with pytest.raises(BadValueError, match="no definition"):
        Language("nothing", ("a",)).contains("a")
