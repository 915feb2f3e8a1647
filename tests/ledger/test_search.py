"""Search by a user's own words: what is found, what is not, and that nothing a user types breaks it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.ledger import catalog
from wavetank.ledger.search import KINDS, index, stems


@pytest.mark.parametrize(
    ("question", "study"),
    [
        ("expert imbalance", "llm-routing"),
        ("imbalance", "llm-routing"),
        ("imbalence", "llm-routing"),
        ("Load-Balancer", "llm-routing"),
        ("gateway", "proxy-speed"),
        ("MoE", "llm-routing"),
        ("retry", "proxy-chaos"),
        ("deadlock", "state-spaces"),
        ("tail latency", "llm-routing"),
        ("KV cache", "llm-routing"),
        ("GPU idle", "llm-routing"),
        ("wrong pod", "llm-routing"),
        ("stale reads", "consistency-models"),
        ("my database loses updates", "consistency-models"),
        ("How many GPUs do I need?", "serving-fidelity"),
        ("how many H100 do I need for 70B at 500 users", "llm-routing"),
        ("users complain about long time to first token at peak", "llm-routing"),
        ("which sort for 64-bit keys with payload", "sort-pairs"),
        ("why is sorting slow", "sort-integers"),
        ("dropbox conflicts", "file-sync"),
        ("LoRA", "adapter-fidelity"),
        ("DHT lookups time out", "agent-discovery"),
        ("sparse matrix", "spmv"),
        ("GEMM", "matmul"),
    ],
)
def test_a_problem_in_a_users_words_finds_its_study(question: str, study: str) -> None:
    assert study in [match.name for match in index().search(question, ("study",))][:3]


@pytest.mark.parametrize("question", ["imbalance", "load balancer", "gateway", "MoE", "expert", "retry", "deadlock",
                                      "tail latency", "cache", "GPU idle", "wrong pod"])  # fmt: skip
def test_the_words_that_found_nothing_find_systems(question: str) -> None:
    assert index().search(question, ("system",))


@pytest.mark.parametrize("study", catalog.built_in().studies)
def test_every_study_is_found_by_each_of_its_problems(study: str) -> None:
    problems = catalog.study(study).problems
    assert problems
    for problem in problems:
        assert study in [match.name for match in index().search(problem, ("study",))][:3], problem


def test_there_are_enough_problems_and_none_twice() -> None:
    everything = catalog.built_in()
    problems = [p for entry in (*everything.studies.values(), *everything) for p in entry.problems]
    # A user reads those of a study at a glance.
    assert len(problems) >= 60
    assert max(len(entry.problems) for entry in (*everything.studies.values(), *everything)) <= 10
    assert len(set(problems)) == len(problems)


def test_names_identifiers_and_titles_find_their_entries() -> None:
    for question, kind, name in [
        ("balance-route", "system", "balance-route"),
        ("raft", "system", "raft"),
        ("2605.06113", "paper", "balance-route"),
        ("amortized byzantine broadcast", "paper", "amortized-brb"),
    ]:
        assert name in [match.name for match in index().search(question, (kind,))][:2]


@pytest.mark.parametrize("question", ["", "  ", "?!", "the of a", "xyzzy", "nothing like it", "\x00", "¿"])
def test_words_that_mean_nothing_here_find_nothing(question: str) -> None:
    assert index().search(question) == []


def test_an_unknown_word_beside_a_known_one_must_not_outweigh_it() -> None:
    assert index().search("xyzzy plugh frobnicate cache") == []


def test_a_part_of_a_word_stands_for_the_words_that_begin_with_it() -> None:
    assert next(match.name for match in index().search("imbal", ("study",))) == "llm-routing"


def test_the_nearest_problem_is_one_of_the_catalogs() -> None:
    assert index().nearest_problem("Stale reads from replicated databases") in index().problems
    # What is like none of them has no nearest.
    assert index().nearest_problem("how do I cook rice") == index().nearest_problem("") == ""


@pytest.mark.parametrize("question", ["how do I cook rice", "what is the weather in Paris", "who won the cup final"])
def test_questions_about_something_else_find_nothing(question: str) -> None:
    assert index().search(question) == []


def test_words_are_folded() -> None:
    assert stems("Retries, RETRY and retrying") == ["retr", "retr", "retr"]
    assert stems("Café's queues; queueing") == ["caf", "queu", "queu"]


@given(st.text(max_size=200))
def test_whatever_is_asked_gets_ranked_entries(question: str) -> None:
    found = index().search(question)
    assert [match.score for match in found] == sorted((match.score for match in found), reverse=True)
    assert all(match.kind in KINDS and match.passage for match in found)
    assert len({(match.kind, match.name) for match in found}) == len(found)
