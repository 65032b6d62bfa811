"""Settings of experiments on real texts that have an option of their own."""

import dataclasses
from typing import Annotated, Any

from flowsim.cli._options import option
from flowsim.errors import InvalidInput

_PANEL = "Real texts"
# option -> the setting that it stands for
_FIELDS = {
    "--data": "data",
    "--dataset": "datasets",
    "--preset": "preset",
    "--seeds": "seeds",
    "--skip-bad": "skip_bad",
}


@dataclasses.dataclass(frozen=True)
class CorporaOptions:
    """Where the texts lie, which of them are used, and how they are trained on."""

    data: Annotated[str | None, option(_PANEL, "--data", metavar="DIR", help="The folder with the data sets.")] = None
    dataset: Annotated[
        list[str] | None, option(_PANEL, "--dataset", metavar="NAME", help="Only this data set; repeat it for several.")
    ] = None
    preset: Annotated[
        str | None,
        option(_PANEL, "--preset", metavar="paper|tuned", help="The paper's rates, or rates tuned on validation loss."),
    ] = None
    seeds: Annotated[str | None, option(_PANEL, "--seeds", metavar="N", help="Runs of each model.")] = None
    skip_bad: Annotated[bool, option(_PANEL, "--skip-bad", help="Leave malformed records out, and say so.")] = False

    @property
    def texts(self) -> dict[str, str]:
        """Each option that was given, with its value as `--set` would take it."""
        values = {
            "--data": self.data,
            "--dataset": ",".join(self.dataset) if self.dataset else None,
            "--preset": self.preset,
            "--seeds": self.seeds,
            "--skip-bad": "true" if self.skip_bad else None,
        }
        return {name: text for name, text in values.items() if text is not None}

    def settings(self, name: str, fields: set[str], assigned: dict[str, str]) -> dict[str, str]:
        """The settings that were given by these options, beside those of `--set`.

        Args:
            name: of the experiment.
            fields: which settings it has.
            assigned: what `--set` gave.

        Raises:
            InvalidInput: if the experiment has no such setting, or `--set` gives it too.
        """
        found: dict[str, Any] = dict(assigned)
        for given, text in self.texts.items():
            field = _FIELDS[given]
            if field not in fields:
                raise InvalidInput(f"{given} is not for {name}, which has no setting {field!r}; leave it away.")
            if field in assigned:
                raise InvalidInput(f"{given} and --set {field} are the same setting; give one of them.")
            found[field] = text
        return found
