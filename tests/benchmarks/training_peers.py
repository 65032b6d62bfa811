"""The same training by other people's tools: the paper's head at the paper's size, full batch of 32, SGD, float32.

Every function takes the sequences and the starting matrices of one or many runs and returns a function that makes a
number of steps and gives the losses of the last one.
"""

import importlib.util
from collections.abc import Callable

import numpy as np

Steps = Callable[[int], np.ndarray]


def available() -> bool:
    """Whether PyTorch, an optional dependency of the benchmarks, is installed."""
    return importlib.util.find_spec("torch") is not None


def eager_one_hot(tokens, queries, labels, vocabulary, start, rate) -> Steps:
    """What a researcher writes first: one-hot sequences (rows x positions x vocabulary), autograd, torch.optim.SGD.

    Args:
        tokens: shape (rows, positions).
        queries: number of the query in the vocabulary, shape (rows,).
        labels: shape (rows,).
        vocabulary: number of tokens.
        start: W_QK (or W_K, W_Q) and W_OV (or W_O, W_V) of one run, keys x queries and outputs x tokens.
        rate: learning rate.
    """
    import torch

    x = torch.nn.functional.one_hot(torch.tensor(tokens).long(), vocabulary).float()
    q = torch.nn.functional.one_hot(torch.tensor(queries).long(), vocabulary).float()
    y = torch.tensor(labels)
    qk, ov = ([torch.tensor(w, dtype=torch.float32, requires_grad=True) for w in circuit] for circuit in start)
    optimizer = torch.optim.SGD([*qk, *ov], lr=rate)

    def logits():
        if len(qk) == 1:
            scores = torch.einsum("bpv,bv->bp", x @ qk[0], q)
        else:
            scores = torch.einsum("bph,bh->bp", x @ qk[0], q @ qk[1])
        attention = torch.softmax(scores, dim=1)
        if len(ov) == 1:
            return torch.einsum("bp,bpv->bv", attention, x) @ ov[0].T
        return torch.einsum("bp,bph->bh", attention, x @ ov[1].T) @ ov[0].T

    def steps(n: int) -> np.ndarray:
        value = None
        for _ in range(n):
            optimizer.zero_grad()
            value = torch.nn.functional.cross_entropy(logits(), y)
            value.backward()
            optimizer.step()
        assert value is not None
        return value.detach().numpy()

    return steps


def vmapped_counts(log_counts, queries, labels, starts, rate) -> Steps:
    """`torch.func.vmap` of the gradient over all runs, on count vectors.

    Args:
        log_counts: shape (runs, rows, tokens).
        queries: one row of the identity for each sequence, shape (runs, rows, queries).
        labels: shape (runs, rows).
        starts: as above, with a leading axis over the runs; W_Q has one row for each query that occurs.
        rate: learning rate.
    """
    import torch

    given = [torch.tensor(a) for a in (log_counts, queries, labels)]
    sizes = [len(circuit) for circuit in starts]
    parameters = tuple(torch.tensor(w, dtype=torch.float32) for circuit in starts for w in circuit)

    def loss(parameters, log_counts, queries, labels):
        qk, ov = parameters[: sizes[0]], parameters[sizes[0] :]
        table = qk[0] if len(qk) == 1 else qk[0] @ qk[1].T
        attention = torch.softmax(queries @ table.T + log_counts, dim=1)
        out = attention @ (ov[0].T if len(ov) == 1 else ov[1].T @ ov[0].T)
        return torch.nn.functional.cross_entropy(out, labels)

    step = torch.func.vmap(torch.func.grad_and_value(loss))

    def steps(n: int) -> np.ndarray:
        nonlocal parameters
        value = None
        for _ in range(n):
            slopes, value = step(parameters, *given)
            parameters = tuple(w - rate * slope for w, slope in zip(parameters, slopes, strict=True))
        assert value is not None
        return value.numpy()

    return steps


def floor_seconds(tokens: int, queries: int, outputs: int, rows: int, hidden: tuple[int, int] | None) -> float:
    """Seconds of one run-step if only its matrix products took time, at the rate of a large product on all cores."""
    import time

    a = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    np.dot(a, a)
    best = np.inf
    for _ in range(5):
        begin = time.perf_counter()
        np.dot(a, a)
        best = min(best, time.perf_counter() - begin)
    flops = 2 * 3 * rows * tokens * outputs + 2 * 2 * rows * tokens * queries
    if hidden is not None:
        flops += 2 * 3 * (hidden[0] * tokens * queries + hidden[1] * tokens * outputs)
    return flops * best / (2 * 1024**3)
