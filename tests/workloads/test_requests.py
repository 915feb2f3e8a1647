"""RequestTrace."""

import dataclasses
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadTraceError, BadValueError
from wavetank.workloads import RequestTrace


@st.composite
def traces(draw, min_size=1, blocks=True):
    """Small traces, with or without prefix blocks; gaps of zero included."""
    n = draw(st.integers(min_size, 24))
    gaps_s = draw(st.lists(st.sampled_from([0.0, 0.001, 0.5, 1.0, 7.25, 60.0]), min_size=n, max_size=n))
    prompts = np.array(draw(st.lists(st.integers(1, 2000), min_size=n, max_size=n)))
    outputs = draw(st.lists(st.integers(1, 500), min_size=n, max_size=n))
    columns = {}
    if blocks and draw(st.booleans()):
        counts = -(-prompts // 512)
        ids = draw(st.lists(st.integers(0, 2**40), min_size=int(counts.sum()), max_size=int(counts.sum())))
        columns = {"block_ids": ids, "block_offsets": np.concatenate(([0], np.cumsum(counts)))}
    return RequestTrace(
        arrival_s=draw(st.sampled_from([0.0, 3.5, 1000.0])) + np.cumsum(gaps_s),
        prompt_tokens=prompts,
        output_tokens=outputs,
        model=np.arange(n) % 2,
        model_names=("small", "large"),
        **columns,
    )


def small(**changes):
    columns = {"arrival_s": [0.0, 1.0, 3.0], "prompt_tokens": [600, 20, 30], "output_tokens": [1, 2, 3], **changes}
    return RequestTrace(**columns)


def rows(trace):
    """Each request as a tuple: lengths, model and, by content, its prefix blocks."""
    blocks = [()] * len(trace)
    if trace.block_ids is not None:
        blocks = [
            tuple(trace.block_ids[first:last].tolist())
            for first, last in zip(trace.block_offsets[:-1], trace.block_offsets[1:], strict=True)
        ]
    models = trace.model.tolist() if trace.model is not None else [None] * len(trace)
    return list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), models, blocks, strict=True))


def same_up_to_names(blocks, others):
    """Whether two lists of block ids are equal after renaming."""
    pairs = {(a, b) for one, other in zip(blocks, others, strict=True) for a, b in zip(one, other, strict=True)}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


class TestContents:
    def test_columns_have_their_dtypes_and_are_read_only(self):
        trace = small(block_ids=[7, 9], block_offsets=[0, 2, 2, 2], tier=[0, 0, 0], tier_names=("gold",))
        assert trace.arrival_s.dtype == np.float64
        for column in ("arrival_s", "prompt_tokens", "output_tokens", "block_ids", "block_offsets", "tier"):
            values = getattr(trace, column)
            assert values.dtype == (np.float64 if column == "arrival_s" else np.int64)
            assert values.flags.c_contiguous
            with pytest.raises(ValueError, match="read-only"):
                values[0] = 1

    def test_attributes_cannot_be_replaced(self):
        with pytest.raises(AttributeError):
            small().arrival_s = np.zeros(3)

    def test_a_callers_array_stays_the_callers(self):
        arrival_s = np.array([0.0, 1.0, 3.0])
        trace = small(arrival_s=arrival_s)
        arrival_s[0] = 0.5
        assert trace.arrival_s[0] == 0.0

    def test_block_ids_are_numbered_in_order_of_first_appearance(self):
        for ids in ([5, 9, 5, 1], [2**60, 3, 2**60, 17]):
            trace = small(prompt_tokens=[1000, 500, 500], block_ids=ids, block_offsets=[0, 2, 3, 4])
            assert trace.block_ids.tolist() == [0, 1, 0, 2]
            assert trace.n_blocks == 3

    def test_equality_is_of_contents_not_of_names(self):
        assert small() == small(name="other")
        assert hash(small()) == hash(small(name="other"))
        assert small() != small(output_tokens=[1, 2, 4])
        assert small() != small(model=[0, 0, 0], model_names=("m",))
        assert small() != "small"

    def test_pickling_keeps_contents_and_read_only(self):
        trace = small(block_ids=[0, 1], block_offsets=[0, 2, 2, 2])
        back = pickle.loads(pickle.dumps(trace))
        assert back == trace
        assert back.name == trace.name
        assert not back.arrival_s.flags.writeable

    def test_the_checksum_is_stable_across_versions(self):
        assert small().checksum == "49ebc4a598001eddc9fedba0258d08f71207d6bf712a9d1ee08d268c2f7ea963"


class TestStatistics:
    def test_span_and_rate(self):
        trace = small()
        assert (len(trace), trace.span_s, trace.rate_per_s) == (3, 3.0, 2 / 3)
        assert repr(trace) == "RequestTrace('requests', n=3, span_s=3, rate_per_s=0.6667)"

    def test_the_rate_of_simultaneous_requests_is_undefined(self):
        assert math.isnan(small(arrival_s=[2.0, 2.0, 2.0]).rate_per_s)

    def test_summary(self):
        summary = small(block_ids=[4, 4], block_offsets=[0, 1, 2, 2]).summary()
        assert summary["requests"] == 3
        assert summary["prompt_tokens_mean"] == pytest.approx(650 / 3)
        assert summary["prompt_tokens_median"] == 30
        assert summary["output_tokens_p99"] == pytest.approx(2.98)
        assert summary["interarrival_cv"] == pytest.approx(1 / 3)
        assert summary["block_reuse"] == 0.5
        assert "block_reuse" not in small().summary()


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "place"),
        [
            ({"arrival_s": [0.0, 2.0, 1.0]}, "row 3, column 'arrival_s'"),
            ({"arrival_s": [0.0, math.nan, 1.0]}, "row 2, column 'arrival_s'"),
            ({"arrival_s": [0.0, 1.0, math.inf]}, "row 3, column 'arrival_s'"),
            ({"arrival_s": [-1.0, 1.0, 2.0]}, "row 1, column 'arrival_s'"),
            ({"arrival_s": ["a", "b", "c"]}, "row 1, column 'arrival_s'"),
            ({"prompt_tokens": [1, 0, 3]}, "row 2, column 'prompt_tokens'"),
            ({"output_tokens": [1, 2, -3]}, "row 3, column 'output_tokens'"),
            ({"output_tokens": [1, 2.5, 3]}, "row 2, column 'output_tokens'"),
            ({"output_tokens": [1, 2, math.nan]}, "row 3, column 'output_tokens'"),
            ({"output_tokens": np.array([1, 2**63, 3], dtype=np.uint64)}, "row 2, column 'output_tokens'"),
            ({"prompt_tokens": [1, 2]}, "row 3, column 'prompt_tokens'"),
            ({"prompt_tokens": [[1, 2, 3]]}, "column 'prompt_tokens'"),
            ({"model": [0, 1, 0], "model_names": ("m",)}, "row 2, column 'model'"),
            ({"tier": [0, -1, 0], "tier_names": ("t",)}, "row 2, column 'tier'"),
            ({"adapter": [0, 1, 2], "adapter_names": ("a", "")}, "row 3, column 'adapter'"),
            ({"block_ids": [0], "block_offsets": [0, 0, 1]}, "row 4, column 'block_offsets'"),
            ({"block_ids": [0], "block_offsets": [0, 1, 0, 1]}, "column 'block_offsets'"),
            ({"block_ids": [0], "block_offsets": [0, 1, 1, 2]}, "column 'block_offsets'"),
            ({"block_ids": [0, -1], "block_offsets": [0, 1, 1, 2]}, "row 3, column 'block_ids'"),
            ({"block_ids": [0, 1], "block_offsets": [0, 0, 2, 2]}, "row 2, column 'block_ids'"),
            ({"block_ids": [0]}, "column 'block_offsets'"),
            ({"block_offsets": [0, 0, 0, 0]}, "column 'block_ids'"),
        ],
    )
    def test_the_error_names_row_and_column(self, changes, place):
        with pytest.raises(BadTraceError) as caught:
            small(**changes)
        assert caught.value.where == place

    def test_an_empty_trace_is_refused(self):
        with pytest.raises(BadTraceError, match="at least one request"):
            RequestTrace(arrival_s=[], prompt_tokens=[], output_tokens=[])

    def test_a_block_without_tokens_is_refused(self):
        with pytest.raises(BadTraceError, match="at least one token"):
            small(block_ids=[0], block_offsets=[0, 1, 1, 1], block_tokens=0)

    def test_unsorted_arrivals_come_with_the_way_to_sort_them(self):
        with pytest.raises(BadTraceError, match=r"RequestTrace\.sorted"):
            small(arrival_s=[0.0, 2.0, 1.0])

    @pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
    def test_a_load_factor_is_positive(self, factor):
        with pytest.raises(BadValueError):
            small().scaled(factor)
        with pytest.raises(BadValueError):
            small().at_rate(factor)

    def test_counts_are_whole_and_positive(self):
        for wrong in (0, -1, 1.5):
            with pytest.raises(BadValueError):
                small().head(wrong)
            with pytest.raises(BadValueError):
                small().replayed(wrong)

    def test_simultaneous_requests_have_no_rate_and_no_period(self):
        trace = small(arrival_s=[2.0, 2.0, 2.0])
        with pytest.raises(BadValueError, match="same instant"):
            trace.at_rate(1.0)
        with pytest.raises(BadValueError, match="same instant"):
            trace.replayed(2)

    def test_a_slice_without_requests_is_refused(self):
        with pytest.raises(BadTraceError, match="No request arrives"):
            small().slice(1.5, 2.5)

    def test_a_bootstrap_block_has_a_length(self):
        with pytest.raises(BadValueError):
            small().resampled(1, block_s=0.0)


class TestSorted:
    def test_rows_move_together_and_ties_keep_their_order(self):
        trace = RequestTrace.sorted(
            arrival_s=[3.0, 1.0, 3.0], prompt_tokens=[600, 20, 30], output_tokens=[1, 2, 3],
            block_ids=[8, 9, 8], block_offsets=[0, 2, 3, 3],
        )  # fmt: skip
        assert trace.arrival_s.tolist() == [1.0, 3.0, 3.0]
        assert rows(trace) == [(20, 2, None, (0,)), (600, 1, None, (0, 1)), (30, 3, None, ())]

    def test_errors_name_rows_as_given(self):
        with pytest.raises(BadTraceError) as caught:
            RequestTrace.sorted(arrival_s=[3.0, 1.0], prompt_tokens=[0, 5], output_tokens=[1, 1])
        assert caught.value.where == "row 1, column 'prompt_tokens'"
        with pytest.raises(BadTraceError) as caught:
            RequestTrace.sorted(arrival_s=[3.0, math.nan], prompt_tokens=[1, 5], output_tokens=[1, 1])
        assert caught.value.where == "row 2, column 'arrival_s'"

    @given(traces())
    @settings(deadline=None)
    def test_a_sorted_trace_is_unchanged(self, trace):
        columns = {name: getattr(trace, name) for name in ("prompt_tokens", "output_tokens", "model", "model_names")}
        again = RequestTrace.sorted(
            arrival_s=trace.arrival_s, block_ids=trace.block_ids, block_offsets=trace.block_offsets, **columns
        )
        assert again == trace


class TestLoad:
    @given(traces(), st.floats(1e-3, 1e3))
    @settings(deadline=None)
    def test_scaling_back_gives_the_same_arrivals(self, trace, factor):
        back = trace.scaled(factor).scaled(1 / factor)
        np.testing.assert_allclose(back.arrival_s, trace.arrival_s, rtol=1e-12)
        assert rows(back) == rows(trace)

    def test_twice_the_load_is_half_the_time(self):
        assert small().scaled(2.0).arrival_s.tolist() == [0.0, 0.5, 1.5]

    @given(traces(min_size=2).filter(lambda trace: trace.span_s > 0), st.floats(0.01, 1e4))
    @settings(deadline=None)
    def test_the_rate_is_the_one_asked_for(self, trace, requests_per_s):
        assert trace.at_rate(requests_per_s).rate_per_s == pytest.approx(requests_per_s)


class TestParts:
    @given(traces(), st.floats(0, 500), st.floats(0, 500))
    @settings(deadline=None)
    def test_slices_at_a_point_hold_every_request_once(self, trace, start_s, width_s):
        cuts = sorted({0.0, start_s, start_s + width_s, math.inf})
        parts = []
        for first, last in itertools.pairwise(cuts):
            inside = (trace.arrival_s >= first) & (trace.arrival_s < last)
            if inside.any():
                part = trace.slice(first, last)
                np.testing.assert_array_equal(part.arrival_s, trace.arrival_s[inside] - first)
                parts.append(part)
        joined = [row for part in parts for row in rows(part)]
        assert [row[:3] for row in joined] == [row[:3] for row in rows(trace)]
        assert [len(row[3]) for row in joined] == [len(row[3]) for row in rows(trace)]

    @given(traces(), st.integers(1, 30))
    @settings(deadline=None)
    def test_the_head_is_the_beginning(self, trace, n):
        head = trace.head(n)
        assert len(head) == min(n, len(trace))
        assert rows(head) == rows(trace)[:n]
        assert head.arrival_s.tolist() == trace.arrival_s[:n].tolist()

    @given(traces())
    @settings(deadline=None)
    def test_a_part_keeps_which_blocks_are_equal(self, trace):
        late = trace.slice(float(trace.arrival_s[len(trace) // 2]))
        assert same_up_to_names([row[3] for row in rows(trace)[-len(late) :]], [row[3] for row in rows(late)])


class TestReplayed:
    def test_passes_follow_at_the_mean_gap(self):
        twice = small().replayed(2)
        assert twice.arrival_s.tolist() == [0.0, 1.0, 3.0, 4.5, 5.5, 7.5]

    @given(traces(min_size=2).filter(lambda trace: trace.span_s > 0), st.integers(1, 4))
    @settings(deadline=None)
    def test_the_rate_stays_and_every_request_comes_in_each_pass(self, trace, times):
        long = trace.replayed(times)
        assert rows(long) == rows(trace) * times
        assert long.rate_per_s == pytest.approx(trace.rate_per_s)


class TestResampled:
    @given(traces())
    @settings(deadline=None)
    def test_seed_zero_is_the_trace_itself(self, trace):
        assert trace.resampled(0) is trace

    @given(traces(), st.integers(1, 10**6), st.sampled_from([0.5, 10.0, 60.0, 1e6]))
    @settings(deadline=None)
    def test_every_request_is_one_of_the_trace_within_its_time(self, trace, seed, block_s):
        other = trace.resampled(seed, block_s=block_s)
        assert {row[:3] for row in rows(other)} <= {row[:3] for row in rows(trace)}
        assert {len(row[3]) for row in rows(other)} <= {len(row[3]) for row in rows(trace)}
        start_s = trace.arrival_s[0]
        mean_gap_s = trace.span_s / max(len(trace) - 1, 1)
        assert start_s <= other.arrival_s[0]
        assert other.arrival_s[-1] <= start_s + trace.span_s + mean_gap_s + 1e-9
        assert other.block_tokens == trace.block_tokens

    @given(traces(), st.integers(0, 10**6))
    @settings(deadline=None)
    def test_equal_seeds_give_equal_traces(self, trace, seed):
        assert trace.resampled(seed) == trace.resampled(seed)

    def test_one_block_is_a_rotation_that_keeps_every_request(self):
        trace = RequestTrace(arrival_s=np.arange(50.0), prompt_tokens=np.arange(1, 51), output_tokens=np.ones(50))
        turned = trace.resampled(3, block_s=1e9)
        shift = int(turned.prompt_tokens[0]) - 1
        assert shift != 0
        np.testing.assert_array_equal(turned.prompt_tokens, np.roll(trace.prompt_tokens, -shift))
        np.testing.assert_allclose(np.diff(turned.arrival_s), 1.0)

    def test_bursts_survive(self):
        # Ten requests within a second, every 100 s.
        arrival_s = (np.arange(100)[:, None] * 100 + np.arange(10)[None, :] * 0.1).ravel()
        trace = RequestTrace(arrival_s=arrival_s, prompt_tokens=np.ones(1000), output_tokens=np.ones(1000))
        shuffled = RequestTrace.sorted(
            arrival_s=np.random.default_rng(0).uniform(0, 1e4, 1000),
            prompt_tokens=np.ones(1000),
            output_tokens=np.ones(1000),
        )
        cv = [trace.resampled(seed, block_s=500.0).summary()["interarrival_cv"] for seed in (1, 2, 3)]
        assert min(cv) > 0.9 * trace.summary()["interarrival_cv"] > 2 * shuffled.summary()["interarrival_cv"]

    def test_seeds_differ_and_keep_the_load_on_average(self):
        rng = np.random.default_rng(1)
        trace = RequestTrace(
            arrival_s=np.cumsum(rng.exponential(0.1, 20_000)),
            prompt_tokens=rng.integers(1, 1000, 20_000),
            output_tokens=rng.integers(1, 100, 20_000),
        )
        others = [trace.resampled(seed) for seed in range(1, 9)]
        assert len({other.checksum for other in others}) == 8
        assert np.mean([len(other) for other in others]) == pytest.approx(20_000, rel=0.01)
        assert np.mean([other.prompt_tokens.mean() for other in others]) == pytest.approx(500, rel=0.01)

    def test_a_prompt_that_is_drawn_again_is_not_found_whole(self):
        n = 2000
        columns = {"arrival_s": np.arange(n) * 1.0, "prompt_tokens": np.full(n, 1024), "output_tokens": np.ones(n)}
        offsets = 2 * np.arange(n + 1)
        alone = RequestTrace(**columns, block_ids=np.arange(2 * n), block_offsets=offsets)
        # Every request begins with the block of its minute, and has one of its own.
        ids = np.column_stack((np.arange(n) // 60, n + np.arange(n))).ravel()
        shared = RequestTrace(**columns, block_ids=ids, block_offsets=offsets)
        for seed in range(1, 6):
            assert alone.resampled(seed).summary()["block_reuse"] == 0.0
            drawn = shared.resampled(seed)
            own = drawn.block_ids.reshape(-1, 2)[:, 1]
            assert len(set(own.tolist())) == len(drawn)
            assert drawn.summary()["block_reuse"] == pytest.approx(shared.summary()["block_reuse"], abs=0.02)

    def test_simultaneous_requests_have_no_other_realisation(self):
        trace = small(arrival_s=[2.0, 2.0, 2.0])
        assert trace.resampled(5) is trace


class TestSessionsLimitsAndDeadlines:
    def make(self, **columns):
        rows = {"arrival_s": [0.0, 1.0, 2.0, 3.5], "prompt_tokens": [5, 6, 7, 8], "output_tokens": [1, 2, 3, 4]}
        return RequestTrace(**rows | columns)

    def test_sessions_are_numbered_in_order_of_first_appearance(self):
        assert self.make(session=[70, -1, 9, 70]).session.tolist() == [0, -1, 1, 0]
        assert self.make(session=[-1] * 4).session.tolist() == [-1] * 4
        assert self.make(session=[70, -1, 9, 70]) == self.make(session=[1, -1, 0, 1])
        assert self.make(session=[70, -1, 9, 70]) != self.make(session=[1, -1, 0, 0])

    def test_a_trace_without_them_keeps_its_checksum(self):
        assert self.make().checksum == self.make(session=None, max_tokens=None, deadline_s=None).checksum
        for column in ("session", "max_tokens", "deadline_s"):
            assert self.make().checksum != self.make(**{column: [1, 1, 1, 1]}).checksum

    @pytest.mark.parametrize(
        ("column", "bad"), [("session", -2), ("max_tokens", -1), ("deadline_s", 0.0), ("deadline_s", math.inf)]
    )
    def test_what_makes_no_sense_is_refused_with_its_row(self, column, bad):
        with pytest.raises(BadTraceError, match=f"row 3, column '{column}'"):
            self.make(**{column: [1, 2, bad, 3]})

    def test_an_answer_may_be_longer_than_its_limit(self):
        assert self.make(max_tokens=[1, 0, 1, 1]).max_tokens.tolist() == [1, 0, 1, 1]

    def test_parts_and_copies_keep_the_columns(self):
        trace = self.make(session=[0, 1, 0, -1], max_tokens=[1, 2, 3, 0], deadline_s=[1.0, math.nan, 3.0, 4.0])
        part = trace.slice(1.0, 3.0)
        assert part.session.tolist() == [0, 1]
        assert part.max_tokens.tolist() == [2, 3]
        assert trace.scaled(2.0).deadline_s.tolist()[2:] == [3.0, 4.0]
        assert trace.head(3).session.tolist() == [0, 1, 0]
        assert trace.chosen([3, 0], [0.0, 1.0]).max_tokens.tolist() == [0, 1]

    def test_a_copy_of_a_trace_has_sessions_of_its_own(self):
        trace = self.make(session=[0, 1, 0, -1])
        assert trace.replayed(2).session.tolist() == [0, 1, 0, -1, 2, 3, 2, -1]
        once = trace.resampled(5, block_s=2.0)
        # A request that is drawn again is not of the conversation that it was drawn for before.
        assert (
            len({(a, s) for a, s in zip(once.prompt_tokens.tolist(), once.session.tolist(), strict=True) if s >= 0})
            == (once.session >= 0).sum()
        )

    def test_tiers_keep_their_order(self):
        urgent_first = self.make(tier=[1, 0, 1, 0], tier_names=("now", "later"))
        assert urgent_first != self.make(tier=[0, 1, 0, 1], tier_names=("later", "now"))
        assert urgent_first == self.make(tier=[2, 0, 2, 0], tier_names=("now", "unused", "later"))


def test_blocks_of_other_weights_are_other_blocks():
    texts = {"block_ids": [3, 4, 3, 4, 3, 4, 3], "block_offsets": [0, 2, 4, 6, 7], "block_tokens": 16}
    plain = RequestTrace(arrival_s=[0, 1, 2, 3], prompt_tokens=[32] * 4, output_tokens=[1] * 4, **texts)
    assert plain.with_blocks_apart() is plain
    alike = dataclasses.replace(plain, adapter=[1, 1, 1, 1], adapter_names=("", "fr"))
    assert alike.with_blocks_apart() is alike
    for codes in ({"adapter": [0, 1, 0, 1], "adapter_names": ("", "fr")},
                  {"model": [0, 1, 0, 1], "model_names": ("a", "b")}):  # fmt: skip
        ids = dataclasses.replace(plain, **codes).with_blocks_apart().block_ids.tolist()
        assert ids[:2] == ids[4:6] and ids[2] == ids[6] and len(set(ids)) == 4
    both = dataclasses.replace(
        plain, adapter=[0, 1, 0, 1], adapter_names=("", "fr"), model=[0, 0, 1, 1], model_names=("a", "b")
    )
    ids = both.with_blocks_apart().block_ids.tolist()
    assert len(set(ids)) == 7
