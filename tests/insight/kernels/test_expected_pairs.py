"""The pairs are those that were written down before the first count."""

from wavetank.insight.kernels.expected_pairs import EXPECTED, NEAR_DUPLICATES


def test_the_right_answers_are_those_that_were_fixed_beforehand():
    contraction = {"Apps_LTIMES", "Apps_LTIMES_NOVIEW"}
    assert {name: set(each.any_of) for name, each in EXPECTED.items()} == {
        "kripke_ltimes": contraction,
        "kripke_lplustimes": contraction,
        "kripke_ltimes_zgd": contraction,
        "kripke_lplustimes_zgd": contraction,
        "kripke_scattering": contraction | {"PolyBench_GEMM"},
        "kripke_source": {"Basic_INDEXLIST", "Basic_IF_QUAD"},
        "kripke_sweep": {"Lcals_TRIDIAG_ELIM", "Lcals_GEN_LIN_RECUR"},
        "kripke_population": {"Stream_DOT", "Basic_REDUCE3_INT", "PolyBench_ATAX"},
    }
    assert all(len(each.because) > 30 for each in EXPECTED.values())


def test_near_duplicates_are_five_pairs_in_three_groups():
    assert sum(len(group) * (len(group) - 1) // 2 for group in NEAR_DUPLICATES) == 5
    assert len(frozenset.union(*NEAR_DUPLICATES)) == 7
