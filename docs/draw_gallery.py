"""Draws the figures of docs/gallery.md from what `flowsim reproduce` saved.

`make gallery`, or `python docs/draw_gallery.py REPRODUCED [FOLDER]`; REPRODUCED holds a folder for each experiment.
Those that need data of their own (table1, ratio-dial) keep their figures where their folder is missing.
"""

import pathlib
import sys

import flowsim as fs
from flowsim.experiments import experiment as experiment_of
from flowsim.experiments import names
from flowsim.experiments._files import load

source = pathlib.Path(sys.argv[1])
folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "figures"
for name in names():
    path = source / name / f"{name}.nc"
    if experiment_of(name).resumable and not path.is_file():
        print(f"left as they are: the figures of {name}")
        continue
    experiment, dataset = load(path)
    for stem, draw in experiment.figures.items():
        (drawn,) = fs.plot.savefig(draw(dataset), folder / f"{stem}.png", overwrite=True)
        print(f"wrote {drawn}")
