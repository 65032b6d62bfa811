"""Draw the closed form against a trained matrix model, for several learning-rate ratios.

python examples/theory_vs_simulation.py [FOLDER]
"""

import pathlib
import sys

import numpy as np

import flowsim as fs

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
task = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
ratios = [0.1, 1.0, 10.0]

# The matrices are trained with finite steps on the population loss; time is lr x steps.
trained = fs.train(task, "CACO", ratio=ratios, lr=0.5, steps=20_000)
theory = fs.exact(task, "CACO", ratio=ratios, log_times=np.asarray(trained.log_time))

for i, ratio in enumerate(ratios):
    gap = float(np.max(np.abs(np.asarray(theory.attention[i] - trained.attention[i]))))
    print(f"ratio {ratio:4g}: attention differs by at most {gap:.1e} (it shrinks in proportion to lr)")

figure = fs.plot.theory_vs_simulation(theory, trained)
figure.savefig(folder / "theory_vs_simulation.png")
print(f"wrote {folder / 'theory_vs_simulation.png'}")
