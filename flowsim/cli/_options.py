"""The options that commands share: the task, the model, the time grid, the output."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

import flowsim
from flowsim import results
from flowsim.cli import _parse
from flowsim.errors import FileProblem, InvalidInput
from flowsim.task import QUERIES, BinomialContext, FixedContext, Task

# The task of the paper's worked numbers: K = 4, C = D = 10, 32 distinct and 31 common positions, per-class query.
_CLASSES, _DISTINCT, _COMMON, _CONTEXT = "4", "10", "10", "32,31"
# ln t below this many decades is drawn nearly evenly, above it geometrically: laws in ln t need decades of ln t.
_LINEAR_LOG_TIME = 10.0


TASK, MODEL, TIMES, TRAINING, OUTPUT = "Task", "Model", "Times", "Training", "Output"
FOUR, ALL = ("CACO", "FACO", "CAFO", "FAFO"), "all"


def option(panel: str, name: str, help: str, metavar: str = "") -> Any:
    """An option of a help panel; one without metavar is a flag. Defaults stand in the help text."""
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


def given_options(options: Any) -> list[str]:
    """Those of a dataclass of options whose value is not the default, as typed on the command line."""
    return [
        f"--{field.name.replace('_', '-')}"
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != field.default
    ]


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """The task, from a file or from its fields."""

    task: Annotated[
        str | None, option(TASK, "--task", metavar="FILE.toml", help="Read the task from a file instead of fields.")
    ] = None
    classes: Annotated[
        str | None, option(TASK, "--classes", metavar="K", help=f"Number of classes (default {_CLASSES}).")
    ] = None
    distinct: Annotated[
        str | None,
        option(TASK, "--distinct", metavar="C", help=f"Distinct token types per class (default {_DISTINCT})."),
    ] = None
    common: Annotated[
        str | None,
        option(TASK, "--common", metavar="D", help=f"Common token types (default {_COMMON}, none with --null)."),
    ] = None
    null: Annotated[bool, option(TASK, "--null", help="Add null tokens (zero embedding) as background.")] = False
    context: Annotated[
        str | None,
        option(TASK, "--context", metavar="M,N", help=f"Positions of each group, in that order (default {_CONTEXT})."),
    ] = None
    binomial: Annotated[
        str | None,
        option(
            TASK, "--binomial", metavar="L,GAMMA", help="Random context: each of L positions is distinct with GAMMA."
        ),
    ] = None
    query: Annotated[
        str | None,
        option(TASK, "--query", metavar="|".join(QUERIES), help=f"The query token (default {QUERIES[0]})."),
    ] = None
    attend_query: Annotated[bool, option(TASK, "--attend-query", help="Let the query position itself be attended.")] = (
        False
    )
    other_outputs: Annotated[
        str | None,
        option(TASK, "--other-outputs", metavar="R", help="Outputs that are never the label (default 0)."),
    ] = None

    def build(self) -> Task:
        """The task.

        Raises:
            InvalidInput: naming option, value and fix.
        """
        if self.task is not None:
            fields = [option for option in given_options(self) if option != "--task"]
            if fields:
                raise InvalidInput(f"--task {self.task} was given together with {fields[0]}; give one or the other.")
            return Task.from_toml(self.task)
        common = self.common if self.common is not None or self.null else _COMMON
        names = ["distinct", *(["common"] if common is not None else []), *(["null"] if self.null else [])]
        query = self.query or QUERIES[0]
        if query not in QUERIES:
            raise InvalidInput(f"--query {query} is unknown; give one of {', '.join(QUERIES)}.")
        return Task(
            classes=_parse.whole("--classes", self.classes or _CLASSES, minimum=2),
            distinct=_parse.whole("--distinct", self.distinct or _DISTINCT, minimum=1),
            common=None if common is None else _parse.whole("--common", common, minimum=1),
            null=self.null,
            context=self._context(names),
            query=query,  # pyright: ignore[reportArgumentType]  checked above
            attend_query=self.attend_query,
            other_outputs=_parse.whole("--other-outputs", self.other_outputs or "0", minimum=0),
        )

    def _context(self, names: list[str]) -> FixedContext | BinomialContext:
        if self.binomial is not None:
            if self.context is not None:
                raise InvalidInput(
                    f"--binomial {self.binomial} was given together with --context {self.context}; give one of them."
                )
            parts = self.binomial.split(",")
            if len(parts) != 2:
                raise InvalidInput(f"--binomial {self.binomial} must be a length and a probability; give 63,0.5.")
            length = _parse.whole("--binomial length", parts[0].strip(), minimum=1)
            gamma = _parse.number("--binomial probability", parts[1].strip())
            if not 0 <= gamma <= 1:
                raise InvalidInput(f"--binomial {self.binomial} has probability {gamma:g}; give one in [0, 1].")
            return BinomialContext(length=length, gamma=gamma)
        text = _CONTEXT if self.context is None else self.context
        counts = _parse.numbers("--context", [text], minimum=0)
        if len(counts) != len(names):
            raise InvalidInput(
                f"--context {text} has {len(counts)} {'entry' if len(counts) == 1 else 'entries'}, the task has "
                f"{len(names)} groups; give the positions of {', '.join(names)}."
            )
        if not any(counts):
            raise InvalidInput(f"--context {text} has no positions at all; give at least one count above 0.")
        given = dict(zip(names, counts, strict=True))
        return FixedContext(distinct=given["distinct"], common=given.get("common"), null=given.get("null"))


ParameterizationOption = Annotated[
    str, option(MODEL, "--parameterization", metavar="NAME", help="CACO, FACO, CAFO or FAFO (default CACO).")
]


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """The start and the scale of the scores; what is not given is left to the solvers and the circuits' defaults."""

    margin0: Annotated[
        str | None,
        option(
            MODEL, "--margin0", metavar="W", help="Margin at time 0 (default 0; 0.01 with a factorized OV circuit)."
        ),
    ] = None
    score_gap0: Annotated[
        str | None,
        option(
            MODEL,
            "--score-gap0",
            metavar="THETA",
            help="Score gap at time 0 (default 0; 0.01 with a factorized QK circuit).",
        ),
    ] = None
    imbalance_ov: Annotated[
        str | None,
        option(MODEL, "--imbalance-ov", metavar="LAMBDA", help="Imbalance of W_O against W_V at time 0 (default 0)."),
    ] = None
    imbalance_qk: Annotated[
        str | None,
        option(MODEL, "--imbalance-qk", metavar="LAMBDA", help="Imbalance of W_K against W_Q at time 0 (default 0)."),
    ] = None

    score_scale: Annotated[
        str | None, option(MODEL, "--score-scale", metavar="S", help="Factor of the scores, or 1/sqrt(d) (default 1).")
    ] = None

    def start(self) -> dict[str, Any]:
        """The keyword arguments of the solvers, those that were given.

        Raises:
            InvalidInput: naming option, value and fix.
        """
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(StartOptions)}
        scale = given.pop("score_scale")
        found: dict[str, Any] = {
            name: _parse.number(f"--{name.replace('_', '-')}", text) for name, text in given.items() if text is not None
        }
        if scale is not None:
            found["score_scale"] = scale if scale == "1/sqrt(d)" else _parse.number("--score-scale", scale, above=0)
        return found


@dataclasses.dataclass(frozen=True)
class ModelOptions(StartOptions):
    """Parameterization and start."""

    parameterization: ParameterizationOption = "CACO"


@dataclasses.dataclass(frozen=True)
class ModelsOptions(StartOptions):
    """One parameterization, or all four side by side, and their start."""

    parameterization: Annotated[
        str, option(MODEL, "--parameterization", metavar="NAME", help="CACO, FACO, CAFO, FAFO or all (default CACO).")
    ] = "CACO"

    def each(self) -> dict[str, dict[str, Any]]:
        """Name -> start of every parameterization asked for.

        With `all` an imbalance goes to those that have the factors.

        Raises:
            InvalidInput: naming option, value and fix.
        """
        start = self.start()
        if self.parameterization != ALL:
            return {self.parameterization: start}
        found = {}
        for name in FOUR:
            missing = {key for key, letter in (("imbalance_qk", name[0]), ("imbalance_ov", name[2])) if letter == "C"}
            found[name] = {key: value for key, value in start.items() if key not in missing}
        return found


@dataclasses.dataclass(frozen=True)
class RatioOptions:
    """Learning-rate ratios, listed."""

    ratio: Annotated[
        list[str] | None,
        option(
            MODEL,
            "--ratio",
            metavar="R",
            help="Ratio eta_QK/eta_OV; repeat it or give a,b,c (default 1; for verify 1e-6,0.1,1,10).",
        ),
    ] = None

    def ratios(self, *default: float) -> list[float]:
        """The ratios.

        Args:
            default: what to use when none is given.

        Raises:
            InvalidInput: naming the first that cannot be used.
        """
        if not self.ratio:
            return list(default)
        return _parse.different("--ratio", _parse.numbers("--ratio", self.ratio, minimum=0))


@dataclasses.dataclass(frozen=True)
class GridOptions:
    """The times."""

    time: Annotated[
        list[str] | None, option(TIMES, "--time", metavar="T", help="A time (steps x lr); repeat it or give a,b,c.")
    ] = None
    t_max: Annotated[
        str | None, option(TIMES, "--t-max", metavar="T", help="Last time of a grid even in log time (default 1e6).")
    ] = None
    log_t_max: Annotated[
        str | None,
        option(TIMES, "--log-t-max", metavar="L", help="The same by its natural logarithm, which may be 1e6."),
    ] = None
    t_min: Annotated[str | None, option(TIMES, "--t-min", metavar="T", help="First time of the grid (default 1).")] = (
        None
    )
    points: Annotated[
        str | None, option(TIMES, "--points", metavar="N", help="Number of times in the grid (default 200).")
    ] = None

    def build(self, log_t_max: float = math.log(1e6)) -> dict[str, list[float]]:
        """`{"times": ...}` or `{"log_times": ...}`, as the solvers take them.

        Args:
            log_t_max: where the grid ends when no option says so.

        Raises:
            InvalidInput: naming option, value and fix.
        """
        if self.time:
            if len(given_options(self)) > 1:
                raise InvalidInput(f"--time was given together with {given_options(self)[1]}; give one of them.")
            times = _parse.numbers("--time", self.time, minimum=0)
            _parse.increasing("--time", times)
            return {"times": times}
        if self.t_max is not None and self.log_t_max is not None:
            raise InvalidInput(f"--t-max {self.t_max} was given together with --log-t-max; give one of them.")
        if self.t_max is not None:
            log_t_max = math.log(_parse.number("--t-max", self.t_max, above=0))
        elif self.log_t_max is not None:
            log_t_max = _parse.number("--log-t-max", self.log_t_max)
        log_t_min = 0.0 if self.t_min is None else math.log(_parse.number("--t-min", self.t_min, above=0))
        if log_t_min >= log_t_max:
            first = "1 (its default)" if self.t_min is None else self.t_min
            raise InvalidInput(f"--t-min {first} is not before the last time; give a smaller one.")
        points = _parse.whole("--points", self.points or "200", minimum=2)
        return {"log_times": log_time_grid(log_t_min, log_t_max, points)}


def log_time_grid(first: float, last: float, points: int) -> list[float]:
    r"""Values of $\ln t$, even while they are small, even in $\ln \ln t$ when they are large."""
    low, high = math.asinh(first / _LINEAR_LOG_TIME), math.asinh(last / _LINEAR_LOG_TIME)
    inner = (low + (high - low) * i / (points - 1) for i in range(1, points - 1))
    return [first, *(_LINEAR_LOG_TIME * math.sinh(value) for value in inner), last]


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """Where results go."""

    out: Annotated[str | None, option(OUTPUT, "--out", metavar="PATH", help="Write the result there.")] = None
    overwrite: Annotated[bool, option(OUTPUT, "--overwrite", help="Replace an output that exists.")] = False
    json: Annotated[bool, option(OUTPUT, "--json", help="Print one JSON object instead of tables.")] = False

    def file(self, suffixes: tuple[str, ...]) -> pathlib.Path | None:
        """The file to write, checked before any work is done; None without --out.

        Raises:
            FileProblem: naming the path and the fix.
        """
        if self.out is None:
            if self.overwrite:
                raise InvalidInput("--overwrite was given without --out; add --out PATH or leave it away.")
            return None
        path = pathlib.Path(self.out)
        if path.suffix not in suffixes:
            raise FileProblem(f"--out {self.out} must end in {' or '.join(suffixes)}; rename it.")
        if not path.parent.is_dir():
            raise FileProblem(f"--out {self.out}: the folder {str(path.parent)!r} does not exist; create it first.")
        if path.is_dir():
            raise FileProblem(f"--out {self.out} is a folder; give the name of a file.")
        if path.exists() and not self.overwrite:
            raise FileProblem(f"--out {self.out} exists; give --overwrite to replace it, or choose another name.")
        return path

    @contextlib.contextmanager
    def folder(self, command: str) -> Iterator[pathlib.Path | None]:
        """The folder to fill, or None without --out.

        Args:
            command: which command fills it, for the manifest.

        Raises:
            FileProblem: naming the path and the fix.
        """
        if self.out is None:
            if self.overwrite:
                raise InvalidInput("--overwrite was given without --out; add --out PATH or leave it away.")
            yield None
            return
        record = {"command": command, "version": flowsim.__version__}
        with results.output_folder(self.out, overwrite=self.overwrite, record=record) as folder:
            yield folder
