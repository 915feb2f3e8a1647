"""A Gaussian process learns how a chain of masses answers a force, on two devices at once."""

import numpy as np

from wavetank.kernels.solvers import HeteroSolver, kernel_matrix
from wavetank.kernels.solvers.covariance import mass_spring_damper, windows

samples, past = 2400, 8
force, position = mass_spring_damper(samples, seed=1)
regressors = windows(force, past)
known, unknown = slice(0, 2000), slice(2000, samples)

covariance = kernel_matrix(regressors[known])
for method in ("cholesky", "conjugate-gradient"):
    solution = HeteroSolver(method=method, host_repeats=3).solve(covariance, position[known])
    predicted = kernel_matrix(regressors[unknown], regressors[known]) @ solution.x
    error = np.linalg.norm(predicted - position[unknown]) / np.linalg.norm(position[unknown])
    border = solution.borders[-1][1]
    print(f"{method}: {solution.iterations} steps, error of the prediction {error:.3f}")
    print(f"  the border between the devices ended at block row {border} of {solution.blocks}")
