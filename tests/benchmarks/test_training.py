"""64 runs at the paper's size (50 tokens, 63 context positions, batch 32, float32): flowsim against PyTorch."""

import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim.sampler import Sampler, composition_law
from flowsim.training.starts import stream
from tests.benchmarks import training_peers as peers

pytestmark = pytest.mark.benchmark

RUNS, ROWS, TOKENS, CLASSES, RATE = 64, 32, 50, 4, 0.1
STEPS = 300  # of flowsim and of vmap; the eager loop takes as many as fit a second or so
ROUNDS = 5  # the best of which counts, of every method in turn
TASK = fs.Task(
    classes=CLASSES,
    distinct=10,
    common=10,
    context=fs.FixedContext(distinct=32, common=31),
    other_outputs=TOKENS - CLASSES,
)


def drawn():
    """The data sets of all seeds, as `train` draws them, by counts and by tokens."""
    sampler = Sampler.of(TASK, "float32")

    def one(seed):
        made = sampler.draw(stream(seed, "examples"), ROWS, composition_law(TASK))
        return sampler.counts_of(made), sampler.sequences_of(made)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jnp.arange(RUNS)))


def starts(parameterization, rng):
    """Matrices of all runs: keys x queries and outputs x tokens, or their factors."""
    shapes = {
        "C": ([(TOKENS, CLASSES)], [(TOKENS, TOKENS)]),
        "F": ([(TOKENS, TOKENS), (CLASSES, TOKENS)], [(TOKENS, TOKENS), (TOKENS, TOKENS)]),
    }
    return [
        [0.1 * rng.normal(size=(RUNS, *shape)).astype(np.float32) for shape in shapes[letter][i]]
        for i, letter in enumerate(parameterization[::2])
    ]


@pytest.mark.parametrize("parameterization", ["FAFO", "CACO"])
def test_training(benchmark, comparison, parameterization):
    title = f"{parameterization}: 64 runs, 50 tokens, T = 64, batch 32, float32, all cores"
    table = comparison(title, "method", "microseconds per run and step", "times flowsim's")
    widths = {
        name: TOKENS
        for name, letter in zip(("hidden_qk", "hidden_ov"), parameterization[::2], strict=True)
        if letter == "F"
    }
    counts, sequences = drawn()
    start = starts(parameterization, np.random.default_rng(0))
    first = {"qk": [w[0] for w in start[0]], "ov": [w[0] for w in start[1]]}
    first = {name: own if len(own) == 2 else own[0] for name, own in first.items()}

    def ours(steps=STEPS, runs=RUNS):
        return fs.train(
            TASK,
            parameterization,
            ratio=1.0,
            lr=RATE,
            steps=steps,
            points=1,
            seeds=runs,
            start=first,
            population="sampled-identities",
            examples=ROWS,
            dtype="float32",
            **widths,
        )

    methods = {"flowsim.train": (lambda: ours(), RUNS * STEPS)}
    if peers.available():
        import torch

        labels = np.argmax(counts.labels, axis=2)
        narrow = peers.vmapped_counts(counts.log_counts, counts.queries, labels, start, RATE)
        # The paper's matrices act on the whole vocabulary. Entries of queries that nobody asks have no gradient, and
        # flowsim does not hold them.
        whole = [[w.copy() for w in circuit] for circuit in start]
        whole[0][-1] = 0.1 * np.random.default_rng(1).normal(size=(RUNS, TOKENS, TOKENS)).astype(np.float32)
        queries = np.pad(counts.queries, ((0, 0), (0, 0), (0, TOKENS - CLASSES)))
        wide = peers.vmapped_counts(counts.log_counts, queries, labels, whole, RATE)
        single = [[w[0] for w in circuit] for circuit in whole]
        eager = peers.eager_one_hot(sequences.tokens[0], sequences.queries[0], labels[0], TOKENS, single, RATE)
        for threads in sorted({1, len(os.sched_getaffinity(0))}, reverse=True):

            def threaded(steps, n, threads=threads):
                torch.set_num_threads(threads)
                return steps(n)

            words = f"{threads} thread{'s' if threads > 1 else ''}"
            methods[f"torch eager, one-hot sequences, {words}"] = (partial(threaded, eager, 100), 100)
            methods[f"torch.func.vmap, count vectors, {words}"] = (partial(threaded, wide, 30), 30 * RUNS)
            methods[f"the same, four queries only, {words}"] = (partial(threaded, narrow, 30), 30 * RUNS)
        check(counts, labels, start, ours)
    for run, _ in methods.values():
        run()  # compile, warm the caches
    best = dict.fromkeys(methods, np.inf)
    for _ in range(ROUNDS):
        for name, (run, run_steps) in methods.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - begin) / run_steps)
    benchmark.pedantic(ours, rounds=1)
    own = best["flowsim.train"]
    for name, seconds in best.items():
        table.add(name, 1e6 * seconds, seconds / own)
    if not peers.available():
        table.add("torch", "not installed", "")
    hidden = (TOKENS, TOKENS) if parameterization == "FAFO" else None
    floor = peers.floor_seconds(TOKENS, CLASSES, TOKENS, ROWS, hidden)
    table.add("floor: its matrix products alone, at the rate of a large one", 1e6 * floor, floor / own)


def check(counts, labels, start, ours):
    """The peer and flowsim train the same thing: the same loss after a few steps of the first run."""
    single = [[w[:1] for w in circuit] for circuit in start]
    theirs = peers.vmapped_counts(counts.log_counts[:1], counts.queries[:1], labels[:1], single, RATE)
    loss = theirs(11)[0]  # the loss before the eleventh step
    assert float(jnp.exp(ours(steps=10, runs=1).log_loss[0, 0])) == pytest.approx(float(loss), rel=1e-5)
