"""The options of `flowsim train` beyond rates and steps: data, start, optimizer, long runs."""

import dataclasses
from typing import Annotated, Any

from flowsim.cli import _parse
from flowsim.cli._options import TRAINING, option
from flowsim.errors import InvalidInput

DATA, LONG = "Data", "Long runs"


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """What a step sees."""

    population: Annotated[
        str | None,
        option(DATA, "--population", "mean-counts or sampled-identities (default mean-counts).", "KIND"),
    ] = None
    examples: Annotated[str | None, option(DATA, "--examples", "Size of a fixed data set, drawn per seed.", "N")] = None
    test: Annotated[str | None, option(DATA, "--test", "Number of held-out sequences.", "N")] = None
    batch: Annotated[str | None, option(DATA, "--batch", "Sequences of a step (default all of them).", "N")] = None
    form: Annotated[str | None, option(DATA, "--form", "counts or sequences (default counts).", "FORM")] = None
    seeds: Annotated[str | None, option(DATA, "--seeds", "Number of seeds, where something is random.", "N")] = None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `train`, as far as given.

        Raises:
            InvalidInput: naming option, value and fix.
        """
        given: dict[str, Any] = _words(self, "population", "form")
        return {**given, **_whole(self, "examples", "test", "batch", "seeds")}


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """Where training starts and how it steps."""

    init: Annotated[
        str | None,
        option(TRAINING, "--init", "Random start, gaussian,SCALE or uniform,SCALE (default symmetric).", "INIT"),
    ] = None
    hidden_qk: Annotated[str | None, option(TRAINING, "--hidden-qk", "Hidden units of W_K, W_Q.", "N")] = None
    hidden_ov: Annotated[str | None, option(TRAINING, "--hidden-ov", "Hidden units of W_O, W_V.", "N")] = None
    embedding: Annotated[
        str | None,
        option(TRAINING, "--embedding", "Dimension of random unit embeddings (default orthonormal).", "D"),
    ] = None
    optimizer: Annotated[
        str | None, option(TRAINING, "--optimizer", "sgd, momentum, adam or adamw (default sgd).", "NAME")
    ] = None
    weight_decay_qk: Annotated[
        str | None, option(TRAINING, "--weight-decay-qk", "Weight decay of the query-key circuit.", "L")
    ] = None
    weight_decay_ov: Annotated[
        str | None, option(TRAINING, "--weight-decay-ov", "Weight decay of the output-value circuit.", "L")
    ] = None
    decay: Annotated[
        str | None,
        option(TRAINING, "--decay", "coupled (to the circuit's learning rate, default) or independent.", "KIND"),
    ] = None
    dtype: Annotated[str | None, option(TRAINING, "--dtype", "float64 or float32 (default float64).", "TYPE")] = None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `train`, as far as given.

        Raises:
            InvalidInput: naming option, value and fix.
        """
        given: dict[str, Any] = _words(self, "optimizer", "decay", "dtype")
        given |= _whole(self, "hidden_qk", "hidden_ov", "embedding")
        for name in ("weight_decay_qk", "weight_decay_ov"):
            text = getattr(self, name)
            if text is not None:
                given[name] = _parse.number(f"--{name.replace('_', '-')}", text, minimum=0)
        if self.init is not None:
            given["start"] = self._start(self.init)
        return given

    def _start(self, text: str) -> Any:
        kind, _, scale = (part.strip() for part in text.partition(","))
        if kind not in ("gaussian", "uniform"):
            raise InvalidInput(
                f"--init {text} is unknown; give gaussian,SCALE or uniform,SCALE, for instance gaussian,0.1."
            )
        number = _parse.number("--init scale", scale, above=0)
        from flowsim import RandomStart

        return RandomStart(number, kind)


@dataclasses.dataclass(frozen=True)
class LongRunOptions:
    """Checkpoints."""

    checkpoint: Annotated[
        str | None, option(LONG, "--checkpoint", "An .npz file to go on from after a crash or Ctrl-C.", "FILE")
    ] = None
    checkpoint_every: Annotated[
        str | None,
        option(LONG, "--checkpoint-every", "Steps between two checkpoints (default a twentieth of --steps).", "N"),
    ] = None
    resume: Annotated[bool, option(LONG, "--resume", "Go on from the checkpoint.")] = False

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `train`, as far as given.

        Raises:
            InvalidInput: naming option, value and fix.
        """
        if self.checkpoint is None and (self.resume or self.checkpoint_every is not None):
            word = "--resume" if self.resume else f"--checkpoint-every {self.checkpoint_every}"
            raise InvalidInput(f"{word} was given without --checkpoint; add --checkpoint FILE.npz.")
        return {**_words(self, "checkpoint"), **_whole(self, "checkpoint_every"), "resume": self.resume}


def _words(options: Any, *names: str) -> dict[str, str]:
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _whole(options: Any, *names: str) -> dict[str, int]:
    return {
        name: _parse.whole(f"--{name.replace('_', '-')}", text, minimum=1)
        for name in names
        if (text := getattr(options, name)) is not None
    }
