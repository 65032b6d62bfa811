"""Training of the full matrices with finite steps, many runs at once."""

from flowsim.training.starts import RandomStart
from flowsim.training.train import train

__all__ = ["RandomStart", "train"]
