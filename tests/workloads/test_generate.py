"""Generated traces."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.sim.rng import stream
from wavetank.workloads import (
    Bursty,
    Diurnal,
    FixedLengths,
    LogNormalLengths,
    Poisson,
    QuantileLengths,
    RequestTrace,
    SharedPrefix,
    fit_lengths,
    generate_requests,
)
from wavetank.workloads.generate import CODE, CONV

MANY = 200_000

arrival_processes = st.one_of(
    st.just(Poisson()),
    st.builds(Bursty, cv=st.floats(0.1, 10)),
    st.builds(Diurnal, peak_to_trough=st.floats(1, 20), period_s=st.floats(1, 1e5)),
)


def gaps_s(process, rate_per_s=5.0):
    return np.diff(process.draw(rate_per_s, stream(1, "test"), n=MANY))


class TestTraces:
    @given(
        st.integers(1, 300),
        st.floats(0.01, 1e4),
        arrival_processes,
        st.sampled_from(["conv", "code", ("fixed", 700, 5)]),
        st.integers(0, 2**40),
        st.none() | st.builds(SharedPrefix, share=st.floats(0, 1), groups=st.integers(1, 5)),
    )
    @settings(deadline=None)
    def test_equal_seeds_give_equal_traces_of_the_asked_length(self, n, rate, arrivals, lengths, seed, shared_prefix):
        arguments = {
            "n_requests": n, "rate_per_s": rate, "arrivals": arrivals, "lengths": lengths, "seed": seed,
            "shared_prefix": shared_prefix,
        }  # fmt: skip
        trace = generate_requests(**arguments)
        assert len(trace) == n
        assert trace == generate_requests(**arguments)
        assert trace != generate_requests(**{**arguments, "seed": seed + 1})

    @given(st.integers(1, 200), st.integers(0, 200), arrival_processes, st.sampled_from(["conv", "code"]))
    @settings(deadline=None)
    def test_a_longer_trace_begins_with_the_shorter_one(self, n, more, arrivals, lengths):
        short, long = (
            generate_requests(n_requests=size, rate_per_s=2.0, arrivals=arrivals, lengths=lengths, seed=4)
            for size in (n, n + more)
        )
        np.testing.assert_allclose(long.arrival_s[:n], short.arrival_s, rtol=1e-9)
        np.testing.assert_array_equal(long.prompt_tokens[:n], short.prompt_tokens)
        np.testing.assert_array_equal(long.output_tokens[:n], short.output_tokens)

    @given(st.floats(1.0, 1000.0), arrival_processes)
    @settings(deadline=None)
    def test_a_duration_holds_every_arrival_before_its_end(self, duration_s, arrivals):
        try:
            trace = generate_requests(duration_s=duration_s, rate_per_s=3.0, arrivals=arrivals, seed=2)
            n = len(trace)
        except BadValueError:
            n = 0
        counted = generate_requests(n_requests=n + 1, rate_per_s=3.0, arrivals=arrivals, seed=2)
        assert counted.arrival_s[n] >= duration_s * (1 - 1e-9)
        if n:
            assert trace.arrival_s[-1] < duration_s
            np.testing.assert_allclose(trace.arrival_s, counted.arrival_s[:n], rtol=1e-9)

    def test_changing_the_arrivals_leaves_the_lengths(self):
        first = generate_requests(n_requests=100, rate_per_s=1.0, seed=3)
        second = generate_requests(n_requests=100, rate_per_s=9.0, arrivals="bursty", seed=3)
        np.testing.assert_array_equal(first.prompt_tokens, second.prompt_tokens)
        assert not np.array_equal(first.arrival_s * 9, second.arrival_s)

    def test_names_stand_for_processes_and_lengths(self):
        by_name = generate_requests(n_requests=50, rate_per_s=1.0, arrivals="diurnal", lengths="code", seed=1)
        assert by_name == generate_requests(n_requests=50, rate_per_s=1.0, arrivals=Diurnal(), lengths=CODE, seed=1)
        assert by_name.name == "generated"

    def test_fixed_lengths_are_fixed(self):
        trace = generate_requests(n_requests=5, rate_per_s=1.0, lengths=("fixed", 700, 3))
        assert trace.prompt_tokens.tolist() == [700] * 5
        assert trace.output_tokens.tolist() == [3] * 5


class TestArrivals:
    def test_poisson_gaps_are_exponential(self):
        gaps = gaps_s(Poisson())
        assert gaps.mean() == pytest.approx(0.2, rel=0.01)
        assert gaps.std() == pytest.approx(0.2, rel=0.02)
        assert (gaps > 0.2).mean() == pytest.approx(math.exp(-1), abs=0.005)

    @pytest.mark.parametrize("cv", [0.25, 1.0, 4.0])
    def test_bursts_have_the_asked_variation(self, cv):
        gaps = gaps_s(Bursty(cv=cv))
        assert gaps.mean() == pytest.approx(0.2, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)

    def test_a_variation_of_one_is_poisson(self):
        np.testing.assert_allclose(gaps_s(Bursty(cv=1.0)), gaps_s(Poisson()))

    def test_the_day_has_its_peak_and_its_trough(self):
        process = Diurnal(peak_to_trough=9.0, period_s=1000.0)
        times_s = process.draw(20.0, stream(0, "day"), duration_s=100_000.0)
        assert times_s.size == pytest.approx(20 * 100_000, rel=0.01)
        counts, _ = np.histogram(times_s % 1000.0, bins=20, range=(0, 1000))
        rates = counts / (100 * 50)
        middles_s = np.arange(20) * 50.0 + 25
        np.testing.assert_allclose(rates, process.rate_per_s(20.0, middles_s), rtol=0.05)
        assert rates[4:6].mean() / rates[14:16].mean() == pytest.approx(9.0, rel=0.1)

    def test_a_flat_day_is_poisson_in_rate(self):
        gaps = gaps_s(Diurnal(peak_to_trough=1.0))
        assert gaps.mean() == pytest.approx(0.2, rel=0.01)
        assert gaps.std() == pytest.approx(0.2, rel=0.02)


class TestLengths:
    @pytest.mark.parametrize(
        ("lengths", "prompt", "output", "longest"),
        [("conv", (1154.7, 1020), (211.1, 129), (8192, 4096)), ("code", (2047.8, 1469), (27.9, 13), (16384, 2048))],
    )
    def test_mean_and_median_are_the_published_ones(self, lengths, prompt, output, longest):
        trace = generate_requests(n_requests=MANY, rate_per_s=1.0, lengths=lengths)
        for tokens, (mean, median), most in zip(
            (trace.prompt_tokens, trace.output_tokens), (prompt, output), longest, strict=True
        ):
            assert tokens.mean() == pytest.approx(mean, rel=0.02)
            assert np.median(tokens) == pytest.approx(median, rel=0.02)
            assert 1 <= tokens.min() <= tokens.max() <= most

    @pytest.mark.parametrize("rank_correlation", [-0.8, 0.0, 0.5, 1.0])
    def test_the_rank_correlation_is_the_asked_one(self, rank_correlation):
        lengths = LogNormalLengths(
            prompt_mean=3000, prompt_median=2000, output_mean=3000, output_median=2000,
            prompt_max=10**6, output_max=10**6, rank_correlation=rank_correlation,
        )  # fmt: skip
        prompt, output = lengths.draw(MANY, stream(0, "test"))
        ranks = [np.argsort(np.argsort(tokens, kind="stable")) for tokens in (prompt, output)]
        assert np.corrcoef(*ranks)[0, 1] == pytest.approx(rank_correlation, abs=0.01)

    def test_a_fit_reproduces_quantiles_and_correlation(self):
        rng = np.random.default_rng(5)
        prompt = np.where(rng.random(20_000) < 0.3, rng.integers(10, 50, 20_000), rng.integers(1000, 4000, 20_000))
        trace = RequestTrace(
            arrival_s=np.arange(20_000.0),
            prompt_tokens=prompt,
            output_tokens=prompt // 8 + rng.integers(1, 300, 20_000),
        )
        fitted = fit_lengths(trace)
        made = generate_requests(n_requests=MANY, rate_per_s=1.0, lengths=fitted)
        levels = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
        for column in ("prompt_tokens", "output_tokens"):
            real, drawn = getattr(trace, column), getattr(made, column)
            np.testing.assert_allclose(np.quantile(drawn, levels), np.quantile(real, levels), rtol=0.03)
            assert drawn.mean() == pytest.approx(real.mean(), rel=0.01)
            assert real.min() <= drawn.min()
            assert drawn.max() <= real.max()
        assert fitted.rank_correlation > 0.8
        assert fit_lengths(made).rank_correlation == pytest.approx(fitted.rank_correlation, abs=0.02)

    def test_the_rank_correlation_of_a_trace_counts_ties_by_their_mean_rank(self):
        trace = RequestTrace(arrival_s=np.arange(4.0), prompt_tokens=[1, 2, 2, 3], output_tokens=[1, 3, 2, 4])
        assert fit_lengths(trace).rank_correlation == pytest.approx(math.sqrt(0.9))

    def test_a_trace_of_equal_requests_fits_fixed_lengths(self):
        fitted = fit_lengths(RequestTrace(arrival_s=[0, 1], prompt_tokens=[7, 7], output_tokens=[1, 2]))
        assert fitted.rank_correlation == 0.0
        assert set(fitted.draw(100, stream(0))[0]) == {7}

    def test_equal_parameters_are_equal_lengths(self):
        assert FixedLengths(prompt_tokens=1, output_tokens=2) == FixedLengths(prompt_tokens=1, output_tokens=2)
        trace = generate_requests(n_requests=50, rate_per_s=1.0)
        assert hash(fit_lengths(trace)) == hash(fit_lengths(trace))


class TestSharedPrefixes:
    def test_shared_prompts_begin_with_one_of_the_groups(self):
        shared = SharedPrefix(share=0.25, groups=4, prefix_tokens=1100, zipf=0.0)
        trace = generate_requests(n_requests=20_000, rate_per_s=1.0, lengths=("fixed", 1500, 1), shared_prefix=shared)
        blocks = trace.block_ids.reshape(20_000, 3)
        uses = np.bincount(trace.block_ids)
        begins_shared = uses[blocks[:, 0]] > 1
        assert begins_shared.mean() == pytest.approx(0.25, abs=0.01)
        np.testing.assert_array_equal(uses[blocks[:, 1]] > 1, begins_shared)
        # 1,100 tokens are two full blocks; the third block of a prompt is always its own.
        assert (uses[blocks[:, 2]] == 1).all()
        pairs = {tuple(pair) for pair in blocks[begins_shared, :2].tolist()}
        assert len(pairs) == 4
        np.testing.assert_allclose(np.sort(uses)[-8:], 20_000 * 0.25 / 4, rtol=0.1)

    def test_popular_groups_follow_zipf(self):
        shared = SharedPrefix(share=1.0, groups=3, prefix_tokens=512, zipf=1.0)
        trace = generate_requests(n_requests=MANY, rate_per_s=1.0, lengths=("fixed", 512, 1), shared_prefix=shared)
        uses = np.sort(np.bincount(trace.block_ids))[::-1]
        np.testing.assert_allclose(uses / MANY, np.array([6, 3, 2]) / 11, rtol=0.02)

    def test_a_short_prompt_shares_its_full_blocks_only(self):
        shared = SharedPrefix(share=1.0, groups=1, prefix_tokens=1024)
        trace = generate_requests(n_requests=3, rate_per_s=1.0, lengths=("fixed", 700, 1), shared_prefix=shared)
        assert trace.block_ids.tolist() == [0, 1, 0, 2, 0, 3]
        trace = generate_requests(n_requests=3, rate_per_s=1.0, lengths=("fixed", 100, 1), shared_prefix=shared)
        assert trace.block_ids.tolist() == [0, 1, 2]

    @given(st.floats(0, 1), st.integers(1, 6), st.integers(16, 400), st.integers(0, 100))
    @settings(deadline=None, max_examples=50)
    def test_every_prompt_has_all_its_blocks(self, share, groups, prefix_tokens, seed):
        shared = SharedPrefix(share=share, groups=groups, prefix_tokens=prefix_tokens, block_tokens=16)
        trace = generate_requests(n_requests=40, rate_per_s=1.0, shared_prefix=shared, seed=seed)
        np.testing.assert_array_equal(np.diff(trace.block_offsets), -(-trace.prompt_tokens // 16))
        assert trace.block_tokens == 16
        # A prefix cache finds leading blocks only: no shared block follows one of the prompt's own.
        uses = np.bincount(trace.block_ids)
        for first, last in zip(trace.block_offsets[:-1], trace.block_offsets[1:], strict=True):
            known = uses[trace.block_ids[first:last]] > 1
            assert (np.diff(known.astype(int)) <= 0).all()


class TestBadInput:
    @pytest.mark.parametrize(
        "arguments",
        [
            {"n_requests": 10, "duration_s": 5.0},
            {},
            {"n_requests": 0},
            {"n_requests": 2.5},
            {"duration_s": 0.0},
            {"duration_s": math.inf},
            {"n_requests": 10, "rate_per_s": 0.0},
            {"n_requests": 10, "rate_per_s": math.nan},
            {"n_requests": 10, "lengths": ("fixed", 10)},
            {"n_requests": 10, "lengths": ("normal", 10, 10)},
            {"n_requests": 10, "lengths": ("fixed", 0, 10)},
            {"duration_s": 1e-9},
        ],
    )
    def test_arguments_out_of_range_are_refused(self, arguments):
        with pytest.raises(BadValueError):
            generate_requests(**{"rate_per_s": 1.0, **arguments})

    def test_unknown_names_show_the_nearest(self):
        with pytest.raises(UnknownNameError) as caught:
            generate_requests(n_requests=1, rate_per_s=1.0, arrivals="poison")
        assert caught.value.nearest == "poisson"
        with pytest.raises(UnknownNameError) as caught:
            generate_requests(n_requests=1, rate_per_s=1.0, lengths="cond")
        assert caught.value.nearest in ("conv", "code")

    @pytest.mark.parametrize(
        ("kind", "wrong"),
        [
            (Bursty, {"cv": 0.0}),
            (Bursty, {"cv": math.nan}),
            (Diurnal, {"peak_to_trough": 0.5}),
            (Diurnal, {"period_s": 0.0}),
            (FixedLengths, {"prompt_tokens": 1.5, "output_tokens": 1}),
            (FixedLengths, {"prompt_tokens": 1, "output_tokens": 0}),
            (QuantileLengths, {"prompt_quantiles": (1,), "output_quantiles": (1, 2)}),
            (QuantileLengths, {"prompt_quantiles": (1, 2), "output_quantiles": (2, 1)}),
            (QuantileLengths, {"prompt_quantiles": (0, 2), "output_quantiles": (1, 2)}),
            (QuantileLengths, {"prompt_quantiles": (1, 2), "output_quantiles": (1, 2), "rank_correlation": 2.0}),
            (SharedPrefix, {"share": 1.5}),
            (SharedPrefix, {"groups": 0}),
            (SharedPrefix, {"zipf": -1.0}),
            (SharedPrefix, {"block_tokens": 0}),
            (SharedPrefix, {"prefix_tokens": 100}),
        ],
    )
    def test_parameters_out_of_range_are_refused(self, kind, wrong):
        with pytest.raises(BadValueError):
            kind(**wrong)

    @pytest.mark.parametrize(
        "wrong", [{"prompt_mean": 900}, {"output_median": 0}, {"output_max": 100}, {"rank_correlation": -1.5}]
    )
    def test_log_normal_parameters_out_of_range_are_refused(self, wrong):
        right = {name: getattr(CONV, name) for name in CONV.__dataclass_fields__}
        with pytest.raises(BadValueError) as caught:
            LogNormalLengths(**{**right, **wrong})
        assert caught.value.where in ("prompt_mean", "output_median", "output_max", "rank_correlation")

    def test_an_arrival_process_needs_one_end(self):
        with pytest.raises(BadValueError):
            Poisson().draw(1.0, stream(0))

    def test_a_fit_needs_a_step(self):
        with pytest.raises(BadValueError):
            fit_lengths(generate_requests(n_requests=2, rate_per_s=1.0), steps=0)
