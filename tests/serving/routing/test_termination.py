"""Fitted termination classifiers."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.routing.termination import fit_geometric, fit_logistic, newton_logistic
from wavetank.sim.rng import stream


def probability(weights, generated, prompt):
    drift = weights[0] + weights[1] * np.log1p(generated) + weights[2] * np.log(prompt)
    return 1.0 / (1.0 + np.exp(-drift))


def decode_steps(outputs):
    """Return (request, generated, remaining) at every decode step of requests of these lengths."""
    request = np.repeat(np.arange(outputs.size), outputs - 1)
    generated = np.concatenate([np.arange(1, n) for n in outputs])
    return request, generated, outputs[request] - generated


def log_likelihood(probabilities, hit):
    return np.log(np.where(hit, probabilities, 1 - probabilities)).mean()


class TestGeometric:
    def test_it_is_the_mean_length(self):
        assert fit_geometric([1, 2, 9]) == 4.0

    def test_a_request_has_at_least_one_token(self):
        assert fit_geometric([0.5]) == 1.0

    def test_the_mean_is_the_maximum_likelihood_of_geometric_lengths(self):
        lengths = stream(0, "lengths").geometric(0.02, 50_000)
        means = np.linspace(30, 80, 501)
        hazards = 1 / means[:, None]
        likelihood = np.log(hazards[:, 0]) + (lengths.mean() - 1) * np.log1p(-hazards[:, 0])
        assert fit_geometric(lengths) == pytest.approx(means[likelihood.argmax()], abs=0.1)
        assert fit_geometric(lengths) == pytest.approx(50, rel=0.02)

    def test_no_past_is_an_error(self):
        with pytest.raises(BadValueError, match="needs past lengths"):
            fit_geometric([])


class TestNewton:
    def test_it_recovers_the_coefficients_of_synthetic_data(self):
        rng = stream(1, "synthetic")
        design = np.column_stack([np.ones(200_000), rng.normal(0, 1, 200_000), rng.normal(2, 1, 200_000)])
        true = np.array([-1.0, 0.7, -0.4])
        hit = rng.random(200_000) < 1 / (1 + np.exp(-design @ true))
        assert newton_logistic(design, hit) == pytest.approx(true, abs=0.03)

    def test_at_its_result_the_gradient_is_that_of_the_ridge_alone(self):
        rng = stream(2, "synthetic")
        design = np.column_stack([np.ones(500), rng.normal(0, 1, (500, 2))])
        hit = rng.random(500) < 0.3
        weights = np.array(newton_logistic(design, hit))
        gradient = design.T @ (hit - 1 / (1 + np.exp(-design @ weights)))
        assert gradient == pytest.approx(1e-6 * 500 * weights, abs=1e-6)

    def test_separable_data_end_in_finite_coefficients_that_separate(self):
        x = np.array([-2.0, -1.0, 1.0, 2.0])
        weights = newton_logistic(np.column_stack([np.ones(4), x, np.zeros(4)]), x > 0)
        assert np.isfinite(weights).all()
        assert weights[1] > 1
        assert weights[2] == 0


class TestLogistic:
    HORIZON = 16

    def test_on_geometric_lengths_it_finds_the_constant_hazard(self):
        rng = stream(3, "lengths")
        outputs = rng.geometric(0.02, 20_000)
        prompts = rng.integers(10, 5000, 20_000)
        weights = fit_logistic(prompts, outputs, self.HORIZON)
        ends = 1 - 0.98**self.HORIZON
        for generated in (1, 10, 100):
            assert probability(weights, generated, 500.0) == pytest.approx(ends, abs=0.04)

    def test_it_beats_the_geometric_one_in_likelihood_where_the_hazard_falls_with_age(self):
        rng = stream(4, "lengths")
        # Most answers are short; those that are not are very long.
        outputs = np.where(rng.random(4000) < 0.8, rng.integers(2, 20, 4000), rng.integers(500, 1500, 4000))
        prompts = rng.integers(10, 5000, 4000)
        past, future = outputs[:2000], outputs[2000:]
        weights = fit_logistic(prompts[:2000], past, self.HORIZON)
        request, generated, remaining = decode_steps(future)
        hit = remaining <= self.HORIZON
        constant = 1 - (1 - 1 / fit_geometric(past)) ** self.HORIZON
        logistic = log_likelihood(probability(weights, generated, prompts[2000:][request]), hit)
        geometric = log_likelihood(np.full(hit.size, constant), hit)
        assert weights[1] < 0
        assert logistic > geometric + 0.03

    def test_it_learns_from_the_prompt(self):
        rng = stream(5, "lengths")
        prompts = rng.choice([100, 2000], 4000)
        outputs = np.where(prompts == 100, rng.geometric(0.2, 4000), rng.geometric(0.005, 4000)) + 1
        weights = fit_logistic(prompts, outputs, self.HORIZON)
        assert probability(weights, 1, 100.0) > 0.9
        assert probability(weights, 1, 2000.0) < 0.15

    def test_a_request_without_a_decode_step_teaches_nothing(self):
        outputs = np.array([40, 60, 90])
        prompts = np.array([10, 20, 30])
        alone = fit_logistic(prompts, outputs, 8)
        assert fit_logistic(np.append(prompts, [5] * 50), np.append(outputs, [1] * 50), 8) == alone

    @pytest.mark.parametrize(("horizon", "least", "most"), [(4, 0.99, 1.0), (3, 0.6, 0.9)])
    def test_ending_in_the_last_step_of_the_horizon_is_ending_within_it(self, horizon, least, most):
        # After its first token a request of five has four to go: always within 4 steps, at 3 of 4 ages within 3.
        weights = fit_logistic([10] * 50, [5] * 50, horizon)
        mean = np.mean([probability(weights, generated, 10.0) for generated in (1, 2, 3, 4)])
        assert least < mean <= most

    def test_equal_pasts_give_equal_weights(self):
        outputs, prompts = np.arange(2, 200), np.arange(2, 200)
        assert fit_logistic(prompts, outputs, 4) == fit_logistic(prompts, outputs, 4)

    @pytest.mark.parametrize(
        ("prompts", "outputs", "horizon"), [([], [], 4), ([1, 2], [3], 4), ([1], [3], 0), ([5, 5], [1, 1], 4)]
    )
    def test_a_past_that_says_nothing_is_an_error(self, prompts, outputs, horizon):
        with pytest.raises(BadValueError, match="past requests that decode"):
            fit_logistic(prompts, outputs, horizon)
