r"""A short list of sequences with the mean and the covariance that random token identities have.

At symmetric matrices the normalization of attention depends on the composition alone, so the second derivative of a
sequence's loss is a polynomial of degree 2 in its token counts: any list of counts with the right first two moments
linearizes the population's gradient exactly. A group of $c$ tokens in $m$ positions has mean $m/c$ and covariance
$(m/c)(1 - 1/c)$ on, $-m/c^2$ off the diagonal. With probability $p$ the counts of one group are $m/c$ plus $\sqrt{m/p}$
times a random corner of the simplex (centred), and those of the others at their means.
"""

import jax.numpy as jnp
import numpy as np

from flowsim import data
from flowsim.data import Batch
from flowsim.errors import InvalidInput
from flowsim.symmetric import Layout
from flowsim.task import Task


def second_moments(task: Task) -> Batch:
    """Sequences that linearize the gradient as random token identities do.

    Args:
        task: what is learnt.

    Raises:
        InvalidInput: if a group has so few positions that a count would be negative.
    """
    layout = Layout.of(task)
    mean = data.population(task)
    groups = [group for group in task.all_groups if group.role != "null"]
    at = [i for i, group in enumerate(task.all_groups) if group.role != "null"]
    spread = [g for g, group in enumerate(groups) if group.types > 1]
    if not spread:
        return mean
    starts = np.cumsum([0, *layout.sizes])
    counts, weights = [], []
    for composition_number, composition in enumerate(task.compositions):
        rows = np.arange(layout.classes) + composition_number * layout.classes
        base = np.exp(np.asarray(mean.log_counts)[rows])
        for g in spread:
            m, c = composition.counts[at[g]], groups[g].types
            if 0 < m < len(spread):
                raise InvalidInput(
                    f"the group {groups[g].name!r} has {m:g} positions, too few for the second moments of random "
                    f"identities in {len(spread)} groups; give it {len(spread)} or more."
                )
            for corner in range(c):
                shift = np.sqrt(m * len(spread)) * (np.arange(c) == corner) - np.sqrt(m * len(spread)) / c
                tiled = np.tile(shift, layout.sizes[g] // c)
                moved = base.copy()
                here = slice(starts[g], starts[g + 1])
                moved[:, here] += np.where(base[:, here] > 0, tiled, 0.0)
                counts.append(moved)
                weights.append(np.asarray(mean.weights)[rows] / (len(spread) * c))
    copies = sum(groups[g].types for g in spread)
    number = np.concatenate(
        [np.tile(np.arange(layout.classes) + i * layout.classes, copies) for i in range(len(task.compositions))]
    )
    with np.errstate(divide="ignore"):  # ln 0 = -inf is a token that does not stand there
        logs = np.log(np.concatenate(counts))
    return Batch(
        log_counts=jnp.asarray(logs),
        log_nulls=mean.log_nulls[number],
        queries=mean.queries[number],
        labels=mean.labels[number],
        weights=jnp.asarray(np.concatenate(weights)),
    )
