"""Draws the figures of docs/gallery.md from what `flowsim reproduce` saved.

`make gallery`, or `python docs/draw_gallery.py REPRODUCED [FOLDER]`; REPRODUCED holds a folder for each experiment.
"""

import pathlib
import sys

import flowsim as fs
from flowsim.experiments import names
from flowsim.experiments._files import load

source = pathlib.Path(sys.argv[1])
folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "figures"
for name in names():
    experiment, dataset = load(source / name / f"{name}.nc")
    for stem, draw in experiment.figures.items():
        (path,) = fs.plot.savefig(draw(dataset), folder / f"{stem}.png", overwrite=True)
        print(f"wrote {path}")
