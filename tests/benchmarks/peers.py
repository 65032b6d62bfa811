"""The same sweep by other people's integrators: the collapsed two-clock flow in log time, all at tolerance 1e-8.

Each `solve` takes ratios of shape `(lanes,)` and log times of shape `(time,)` and returns margin and score gap, each of
shape `(lanes, time)`. The state starts at the first log time from the Taylor series of the zero start.
"""

import concurrent.futures
import importlib.util
import os
from collections.abc import Callable

import numpy as np
from scipy.integrate import odeint

K, C, D, M, N = 4, 10, 10, 32.0, 31.0
TOLERANCE = 1e-8
ALPHA0 = M / (M + N)
GAIN = (1 / C + 1 / D) / K

Solve = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def start(ratio, log_time):
    """Margin and score gap at a time so small that the next terms of the series, of relative size t, do not matter."""
    t = np.exp(log_time)
    margin = ALPHA0 * t / (C * K)
    velocity = ratio * GAIN * ALPHA0 * (1 - ALPHA0) * (K - 1) / K
    return margin, velocity * margin * t / 2


def velocity(state, log_time, ratio):
    """Derivative of (margin, score gap) by log time, for one lane in plain floats."""
    margin, gap = state
    odds = M / N * np.exp(gap)
    alpha = odds / (1 + odds)
    rate = np.exp(log_time - np.logaddexp(alpha * margin, np.log(K - 1)) + np.log(K - 1))
    return alpha * rate / (C * (K - 1)), ratio * GAIN * alpha / (1 + odds) * rate * margin


def scipy_odeint(ratios: np.ndarray, log_times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """SciPy's LSODA in a Python loop over lanes."""
    paths = [
        odeint(velocity, start(r, log_times[0]), log_times, args=(r,), rtol=TOLERANCE, atol=TOLERANCE, mxstep=10_000)
        for r in ratios
    ]
    stacked = np.stack(paths)
    return stacked[..., 0], stacked[..., 1]


def torchdiffeq_dopri5() -> Solve | str:
    """torchdiffeq's dopri5 on all lanes at once, or why not."""
    if importlib.util.find_spec("torchdiffeq") is None:
        return "not installed"
    import torch
    from torchdiffeq import odeint as torch_odeint

    torch.set_num_threads(os.cpu_count() or 1)
    log_others = float(np.log(K - 1))

    def solve(ratios, log_times):
        r = torch.as_tensor(ratios, dtype=torch.float64)
        grid = torch.as_tensor(log_times, dtype=torch.float64)

        def field(s, state):
            margin, gap = state
            odds = M / N * torch.exp(gap)
            alpha = odds / (1 + odds)
            rate = torch.exp(s + log_others - torch.logaddexp(alpha * margin, torch.full_like(gap, log_others)))
            return torch.stack([alpha * rate / (C * (K - 1)), r * GAIN * alpha / (1 + odds) * rate * margin])

        margin, gap = start(ratios, log_times[0])
        state = torch.as_tensor(np.stack([np.broadcast_to(margin, ratios.shape), gap]))
        with torch.no_grad():
            path = torch_odeint(field, state, grid, rtol=TOLERANCE, atol=TOLERANCE, method="dopri5")
        path = path.numpy()  # pyright: ignore[reportAttributeAccessIssue]
        return path[:, 0].T, path[:, 1].T

    return solve


def compiled_lsoda() -> Solve | str:
    """numbalsoda's LSODA, right-hand side compiled by numba, lanes over all cores; or why not."""
    if importlib.util.find_spec("numbalsoda") is None:
        return "not installed"
    import numba
    from numbalsoda import lsoda, lsoda_sig

    log_others = float(np.log(K - 1))

    @numba.cfunc(lsoda_sig)
    def field(s, state, change, data):
        margin, gap = state[0], state[1]
        odds = M / N * np.exp(gap)
        alpha = odds / (1 + odds)
        a = alpha * margin
        top = max(a, log_others)
        rate = np.exp(s + log_others - top - np.log1p(np.exp(-abs(a - log_others))))
        change[0] = alpha * rate / (C * (K - 1))
        change[1] = data[0] * GAIN * alpha / (1 + odds) * rate * margin

    address = field.address  # pyright: ignore[reportFunctionMemberAccess]  numba's decorator

    @numba.njit(nogil=True)
    def lanes(address, ratios, starts, log_times, out):
        for i in range(ratios.size):
            path, _ = lsoda(address, starts[i], log_times, ratios[i : i + 1], rtol=TOLERANCE, atol=TOLERANCE)
            out[i] = path

    cores = os.cpu_count() or 1

    def solve(ratios, log_times):
        margin, gap = start(ratios, log_times[0])
        starts = np.ascontiguousarray(np.stack([np.broadcast_to(margin, ratios.shape), gap], axis=1))
        out = np.empty((ratios.size, log_times.size, 2))
        parts = np.array_split(np.arange(ratios.size), cores)
        with concurrent.futures.ThreadPoolExecutor(cores) as pool:
            jobs = [
                pool.submit(lanes, address, ratios[p], starts[p], log_times, out[p[0] : p[-1] + 1])
                for p in parts
                if p.size
            ]
            for job in jobs:
                job.result()
        return out[..., 0], out[..., 1]

    return solve
