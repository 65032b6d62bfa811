"""Judge one's own training logs: arrays of step, margin and attention are enough.

python examples/judge_your_own_logs.py
"""

import numpy as np

import flowsim as fs

# Stand-in for logs of one's own: 20 classes, tokens of a null background, learning rate 0.5, one line per 100 steps.
task = fs.Task(classes=20, distinct=1, null=True, context=fs.FixedContext(distinct=5, null=50))
lr, steps = 0.5, np.arange(100, 40_001, 100)
run = fs.exact(task, "CACO", ratio=1.0, times=lr * steps)
margin = np.asarray(run.margin) + np.random.default_rng(0).normal(0, 0.01, steps.size)
attention = np.asarray(run.attention)

logs = fs.Trajectory.from_arrays(
    times=lr * steps,  # gradient-flow time is learning rate x steps
    margin=margin,
    log_odds=np.log(attention / (1 - attention)),
    task=task,  # optional: with it the predicted constants are compared as well
    ratio=1.0,
)
# A run of 20,000 units of time decides little about laws in log t; the reasons say from where on they could be read.
print(fs.verify(logs))
