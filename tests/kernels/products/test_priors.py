"""What ships: families, the rules of each, and that nothing is promised where nothing was measured."""

import pytest

from wavetank.kernels.products import libraries, priors
from wavetank.kernels.products.priors import Priors

AMD, INTEL = "vendor_id\t: AuthenticAMD\n", "vendor_id\t: GenuineIntel\n"
FAMILIES = {
    ("x86_64", AMD + "flags\t: avx2 fma avx512f\n"): "zen-avx512",
    ("x86_64", INTEL + "flags\t: fma avx2 avx512f\n"): "intel-avx512",
    ("AMD64", INTEL + "flags\t: fma avx2\n"): "x86-avx2",
    ("x86_64", "vendor_id : CentaurHauls\nflags : fma avx2 avx512f\n"): "x86-avx2",
    ("x86_64", AMD + "flags\t: avx2\n"): "other",
    ("x86_64", ""): "other",
    ("aarch64", "Features : asimd\n"): "arm",
    ("arm64", ""): "arm",
    ("riscv64", ""): "other",
}


@pytest.mark.parametrize(("machine", "facts"), FAMILIES)
def test_a_processor_belongs_to_a_family_that_ships(machine, facts):
    assert priors.family_of(machine, facts) == FAMILIES[machine, facts]
    assert FAMILIES[machine, facts] in priors.read()


def test_every_family_is_sound_and_careful():
    found = priors.read()
    assert {"zen-avx512", "intel-avx512", "x86-avx2", "arm", "other"} == set(found)
    for family in found.values():
        assert set(family.libraries) <= set(libraries.LIBRARIES)
        assert set(family.schemes) <= {"float32", "float64"}
        for rules in family.schemes.values():
            assert [levels for levels, _ in rules] == sorted({levels for levels, _ in rules})
            assert all(1 <= levels <= 3 and side >= 4096 for levels, side in rules)
    for name in ("x86-avx2", "arm", "other"):
        assert found[name].library("torch", ("numpy", "torch")) == "torch"
        assert found[name].levels(1 << 15, 1 << 15, 1 << 15, "float32", 1) == 0
    assert priors.here() in found.values()


def test_rules_go_by_the_least_side_and_the_threads():
    made = Priors("made", "Made", "", ("mkl", "numpy"), 2, {"float32": ((1, 100), (2, 300))})
    assert [made.levels(side, 999, 999, "float32", 2) for side in (99, 100, 299, 300)] == [0, 1, 1, 2]
    assert made.levels(999, 999, 99, "float32", 1) == made.levels(999, 99, 999, "float32", 1) == 0
    assert made.levels(999, 999, 999, "float64", 1) == made.levels(999, 999, 999, "float32", 3) == 0
    assert made.library("torch", ("numpy", "torch")) == "numpy"
    assert made.library("torch", ("mkl", "numpy", "torch")) == "mkl"
    assert Priors("none", "None", "").library("torch", ("numpy", "torch")) == "torch"
