"""Trainings on a data set, and what the trained models make of its test texts."""

import concurrent.futures
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flowsim.erasure import SHARES, faithfulness
from flowsim.errors import FileProblem, InvalidInput
from flowsim.experiments._experiment import Report
from flowsim.experiments._table1.data import Prepared, relevant_tokens
from flowsim.experiments._table1.settings import PAPER, TUNING_SEED, TextSettings
from flowsim.solve.lanes import cores, on_cores
from flowsim.status import Status
from flowsim.text_training import Fitted, Run, fit, probabilities, read
from flowsim.transformer import PADDING, Transformer

_UNKNOWN = 1  # its number in every vocabulary


class Chosen(NamedTuple):
    """Rates of a data set.

    Attributes:
        base_rate: learning rate of everything.
        multiplier: of the query-key circuits' rate in the higher regime; NaN where none was chosen.
        base_losses: mean validation loss of each candidate for the base rate; empty if it was not tuned.
        multiplier_losses: the same of the multipliers.
    """

    base_rate: float
    multiplier: float
    base_losses: np.ndarray
    multiplier_losses: np.ndarray


class Trainer:
    """Trains on one data set; what is done stays in a folder, if there is one, until somebody removes it."""

    def __init__(self, data: Prepared, settings: TextSettings, folder: pathlib.Path | None, report: Report | None):
        self._data, self._settings, self._folder, self._report = data, settings, folder, report

    def train(self, what: str, runs: Sequence[Run]) -> Fitted:
        """Trains some runs, or goes on with them where an earlier call of the same name was interrupted.

        Args:
            what: name of the stage, for the progress and the file.
            runs: what is trained.

        Raises:
            FileProblem: if the folder holds the same stage of another experiment, or a damaged file of it.
            KeyboardInterrupt: if it was stopped with Ctrl-C.
        """
        settings, data, tell = self._settings, self._data, self._report
        path = None if self._folder is None else self._folder / f"{data.name}-{what.replace(' ', '-')}.npz"
        # which of the fields matter is `fit`'s to say
        model = {name: getattr(settings, name) for name in ("d", "layers", "heads", "parameterization")}

        def report(done: int, total: int) -> None:
            if tell is not None:
                tell(f"{data.name}, {what}", done, total)

        try:
            fitted = fit(
                self._start,
                data.texts[0],
                data.texts[1],
                runs,
                weight_decay=settings.weight_decay,
                batch=settings.batch,
                max_epochs=settings.max_epochs,
                patience=settings.patience,
                checkpoint=path,
                resume=path is not None and path.exists(),
                settings={**model, "vocabulary": len(data.vocabulary.words)},
                report=report,
            )
        except InvalidInput as error:
            if path is None or not path.exists():
                raise
            if isinstance(error, FileProblem):
                raise FileProblem(
                    f"file {str(path)!r} of an unfinished run cannot be used ({error}); remove it, and the same "
                    "command does that part anew."
                ) from error
            raise FileProblem(
                f"folder {str(self._folder)!r} holds an unfinished run that does not go with this one ({error}); "
                "remove that folder, or repeat its settings."
            ) from error
        if (fitted.status == Status.INTERRUPTED).any():
            raise KeyboardInterrupt
        return fitted

    def _start(self, key: Any) -> Transformer:
        settings = self._settings
        model = Transformer.start(
            key,
            vocabulary=len(self._data.vocabulary.words),
            length=self._data.length,
            classes=len(self._data.classes),
            d=settings.d,
            layers=settings.layers,
            heads=settings.heads,
            parameterization=settings.parameterization,
        )
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model)

    def choose(self, multipliers: Sequence[float]) -> Chosen:
        """The rates: the paper's, or those of the least validation loss.

        Args:
            multipliers: candidates; without any, none is chosen.
        """
        settings, nothing = self._settings, np.zeros(0)
        if settings.preset == "paper":
            return Chosen(*PAPER[self._data.name], nothing, nothing)
        rates = settings.base_rates
        base = self._losses("tuning the base rate", [(rate, 1.0) for rate in rates])
        rate = rates[self._least(base, "base_rates")]
        if not multipliers:
            return Chosen(rate, float("nan"), base, nothing)
        losses = self._losses("tuning the multiplier", [(rate, multiplier) for multiplier in multipliers])
        return Chosen(rate, multipliers[self._least(losses, "multipliers")], base, losses)

    def _losses(self, what: str, candidates: Sequence[tuple[float, float]]) -> np.ndarray:
        """Mean validation loss at the best epoch of each pair of base rate and multiplier; NaN where one diverged."""
        seeds = range(TUNING_SEED, TUNING_SEED + self._settings.tuning_seeds)
        runs = [Run(rate, multiplier, seed) for rate, multiplier in candidates for seed in seeds]
        return self.train(what, runs).best_loss.reshape(len(candidates), -1).mean(axis=1)

    def _least(self, losses: np.ndarray, name: str) -> int:
        """The number of the candidate with the least loss."""
        if np.isfinite(losses).any():
            return int(np.nanargmin(losses))
        for file in self._folder.glob(f"{self._data.name}-tuning-*.npz") if self._folder else ():
            file.unlink()  # no run with other candidates can use it
        raise InvalidInput(f"training diverged with every one of {name}; give smaller ones, or a smaller weight_decay.")


class Outcome(NamedTuple):
    """What the best models of some runs make of the test texts, NaN for runs that diverged.

    Attributes:
        probability: of the right label, shape (runs, texts).
        correct: 1 where the right label is the most probable, else 0.
        attention: of the last position on relevant tokens; NaN where nobody marked any.
        largest: attention of the last position on the token that has most of it.
        high_by_chance: how often attention on relevant tokens would reach the threshold if these were elsewhere: the
            share of the cyclic shifts of the relevant tokens; NaN where nobody marked any.
        comprehensiveness: shape (runs, texts, shares).
        sufficiency: likewise.
    """

    probability: np.ndarray
    correct: np.ndarray
    attention: np.ndarray
    largest: np.ndarray
    high_by_chance: np.ndarray
    comprehensiveness: np.ndarray
    sufficiency: np.ndarray


def outcome(data: Prepared, fitted: Fitted, settings: TextSettings, tell: Callable[[int], None]) -> Outcome:
    """Reads the test texts with the best model of every run.

    Args:
        data: the data set.
        fitted: the runs.
        settings: how tokens are removed, and at which shares.
        tell: is told how many runs are done.
    """
    examples, texts = data.examples[2], data.texts[2]
    words = [row[row.size - size :] for row, size in zip(texts.tokens, texts.sizes, strict=True)]
    shares = shares_of(settings)
    n, runs = len(examples), len(fitted.status)
    shapes = [(runs, n)] * 5 + [(runs, n, len(shares))] * 2
    found = Outcome(*(np.full(shape, np.nan) for shape in shapes))
    masks = [relevant_tokens(example) for example in examples]
    # the sign for the end is no token of the text: it is neither counted nor removed, and no place for relevant tokens
    ends = [
        np.arange(len(word)) == len(word) - 1 if settings.end_token else np.zeros(len(word), bool) for word in words
    ]
    replacement = {"delete": None, "mask": _UNKNOWN, "pad": PADDING}[settings.removal]
    widths = data.texts[0].widths
    usable = [i for i in range(runs) if fitted.status[i] == Status.OK]
    done: list[int] = []

    def look(i: int) -> None:
        model = fitted.model(i)
        reading = read(model, words, widths)
        found.probability[i] = reading.probabilities[np.arange(n), texts.labels]
        found.correct[i] = reading.probabilities.argmax(axis=1) == texts.labels
        found.attention[i] = [
            np.nan if mask is None else row[mask].sum() for row, mask in zip(reading.attention, masks, strict=True)
        ]
        found.largest[i] = [row.max() for row in reading.attention]
        found.high_by_chance[i] = [
            np.nan if mask is None else _high_by_chance(row[~end], mask[~end], settings.threshold)
            for row, mask, end in zip(reading.attention, masks, ends, strict=True)
        ]
        scores = faithfulness(
            lambda given: probabilities(model, given, widths),
            words,
            reading.attention,
            shares=shares,
            removal=settings.removal,
            replacement=replacement,
            always=ends,
        )
        found.comprehensiveness[i], found.sufficiency[i] = scores.comprehensiveness, scores.sufficiency
        done.append(i)
        tell(len(done))

    with concurrent.futures.ThreadPoolExecutor(cores() if on_cores() else 1) as pool:
        list(pool.map(look, usable))
    return found


def _high_by_chance(attention: np.ndarray, relevant: np.ndarray, threshold: float) -> float:
    """The share of the cyclic shifts of the relevant tokens that reach the threshold."""
    places = np.flatnonzero(relevant) + np.arange(attention.size)[:, None]
    return float(np.mean(attention[places % attention.size].sum(axis=1) >= threshold))


def shares_of(settings: TextSettings) -> tuple[float, ...]:
    """ERASER's shares and the one of the settings."""
    return tuple(sorted({*SHARES, settings.share}))


def majority(data: Prepared) -> float:
    """Test accuracy of answering the label that is most frequent there: of all answers that need no text, the best.

    That of the training texts may be another one, and a model that learnt nothing better than it.
    """
    return float(np.bincount(data.texts[2].labels).max() / len(data.texts[2].labels))


def origin(data: Prepared, settings: TextSettings) -> dict[str, Any]:
    """What was used, as plain data."""
    layers = settings.layers
    attention = "raw attention of the only layer" if layers == 1 else f"rollout of {layers} layers"
    return {**data.origin, "attention": attention, "removal": settings.removal, "end_token": settings.end_token}
