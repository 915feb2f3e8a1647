"""The knowledge base and BM25 by hand."""

import math

import pytest

from wavetank.insight.io.labels import KINDS
from wavetank.insight.io.retrieval import passages, ranked, retrieve, words


def test_the_knowledge_base_has_about_sixty_entries_with_sources_for_every_kind() -> None:
    found = passages()
    assert 55 <= len(found) <= 70 and len({each.says for each in found}) == len(found)
    assert all(each.source and 40 < len(each.says) < 200 and each.says.endswith(".") for each in found)
    for kind in KINDS:
        assert sum(kind in each.kinds for each in found) >= 2, kind
    assert all(set(each.kinds) <= set(KINDS) for each in found)


def test_words_are_lower_case_without_plurals_and_common_ones() -> None:
    assert words("The Stripes of a file ACROSS classes") == ["stripe", "file", "across", "classe"]


def test_scores_follow_the_formula() -> None:
    texts = [words(each.says) for each in passages()]
    mean = sum(map(len, texts)) / len(texts)
    seen = sum("stripe" in text for text in texts)
    rare = math.log(1 + (len(texts) - seen + 0.5) / (seen + 0.5))
    for score, passage in ranked("stripe"):
        text = words(passage.says)
        count, long = text.count("stripe"), 0.25 + 0.75 * len(text) / mean
        assert score == pytest.approx(rare * count * 2.5 / (count + 1.5 * long))
    assert len(ranked("stripe")) == seen and ranked("zebra") == []


def test_passages_on_other_subjects_are_dropped() -> None:
    found = retrieve("stripe server file one", "SLIM", 3)
    assert len(found) == 3 and all("SLIM" in each.kinds for each in found)
    assert retrieve("stripe", "SLIM", 0) == [] and retrieve("zebra", "SLIM") == []
    assert found[0].cited == f"{found[0].says} ({found[0].source})"
