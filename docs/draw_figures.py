"""Draws the figures of the README: `make figures`, or `python docs/draw_figures.py [FOLDER]`; about two minutes."""

import pathlib
import sys

import numpy as np

import flowsim as fs

FOUR = ("CACO", "FACO", "CAFO", "FAFO")
RATIOS = [1e-6, 0.1, 1.0, 10.0]
folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "figures"
task = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
log_times = np.geomspace(1, 1e6, 400)

trained = fs.train(task, "CACO", ratio=RATIOS, lr=0.2, steps=100_000)
theory = fs.exact(task, "CACO", ratio=RATIOS, log_times=np.asarray(trained.log_time))
diagrams = [
    fs.phase_diagram(task, name, ratios=np.geomspace(1e-8, 1e2, 120), log_times=np.geomspace(1, 1e6, 160))
    for name in FOUR
]
budget = fs.error_budget(task, "FAFO", ratio=5.0, lr=0.5, steps=2000, batch=32, seeds=8)
figures = {
    "score_gap_regimes": fs.plot.score_gap_regimes(fs.exact(task, "CACO", ratio=RATIOS, log_times=log_times)),
    "four_laws": fs.plot.four_laws(fs.exact(task, FOUR, ratio=1.0, log_times=log_times)),
    "error_budget": fs.plot.error_budget(budget),
    "phase_diagram": fs.plot.phase_diagram(*diagrams),
    "theory_vs_simulation": fs.plot.theory_vs_simulation(theory, trained),
}
for name, figure in figures.items():
    fs.plot.savefig(figure, folder / f"{name}.png", overwrite=True)
    print(f"wrote {folder / name}.png")
