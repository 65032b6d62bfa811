"""Training of the causal transformer on labelled texts, many runs at once, and reading with the trained models."""

from flowsim.text_training.batches import Texts
from flowsim.text_training.reading import Reading, probabilities, read
from flowsim.text_training.trainer import Fitted, Run, fit

__all__ = ["Fitted", "Reading", "Run", "Texts", "fit", "probabilities", "read"]
