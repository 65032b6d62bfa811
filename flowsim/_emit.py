"""SymPy to source: prints a flow as Python functions that call `_logdomain` and plain arithmetic.

Softmaxes are emitted as calls into the log domain, because SymPy would reorder the sums that keep them accurate.
Everything else (what the velocity makes of attentions and errors) is printed from the derived expressions: factors that
depend on the parameters alone are computed once and shared over the whole system (common subexpressions), so that
nothing but state-dependent arithmetic is left for each lane of a batch.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportReturnType=false

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence

import sympy as sp
from sympy.printing.pycode import PythonCodePrinter

from flowsim.theory.flow import Flow
from flowsim.theory.symbols import CLASSES, OTHER_OUTPUTS, RATIO, Mean


class SourcePrinter(PythonCodePrinter):
    """Prints expressions as Python; floats with the shortest digits that read back to the same number."""

    def __init__(self):
        super().__init__({"fully_qualified_modules": False})

    def _print_Float(self, expr) -> str:
        return repr(float(expr))

    def _print_Symbol(self, expr) -> str:
        if not expr.name.isidentifier() or keyword.iskeyword(expr.name):
            raise AssertionError(f"{expr.name!r} is no Python name")
        return expr.name


_printer = SourcePrinter()


def print_source(expression: sp.Expr) -> str:
    """One expression as Python source."""
    return _printer.doprint(expression)


def emit(flow: Flow, name: str) -> str:
    """The source of one function of a flow's compiled field.

    Args:
        flow: the symbolic flow.
        name: one of `functions(flow)`.

    Returns:
        A function that takes and returns tuples of scalars. `softmax`, `attend`, `errors`, `joint`, `log`, `sqrt`,
        `zeros_like`, `columns` and `averaging` must be in its namespace.
    """
    return _emitters(flow)[name](flow)


class _Body:
    """A function body under construction: parameter factors are collected and printed before the rest."""

    def __init__(self, flow: Flow):
        self.flow = flow
        self.factors: dict[sp.Expr, sp.Symbol] = {}
        self.lines: list[str] = []

    def add(self, name: str, value: str) -> None:
        self.lines.append(f"{name} = {value}")

    def factor(self, expression: sp.Expr) -> str:
        """Source of a factor that depends on the parameters alone, with its sign in front; `""` for 1."""
        if expression == 1:
            return ""
        if expression == -1:
            return "-"
        if expression.could_extract_minus_sign():
            return "-" + self.factor(-expression)
        symbol = self.factors.setdefault(expression, sp.Symbol(f"k{len(self.factors)}"))
        return f"{symbol}*"

    def linear(self, terms: Mapping[str, sp.Expr]) -> str:
        """Source of a linear combination: name -> coefficient in the parameters."""
        parts = []
        for name, coefficient in terms.items():
            plain, rated = coefficient.as_independent(RATIO, as_Add=False)
            factor = self.factor(plain)
            if rated != 1:
                factor = f"{factor}{print_source(rated)}*"
            parts.append(f"{factor}{name}")
        return " + ".join(parts).replace("+ -", "- ")

    def render(self, name: str, arguments: str, unpack: Iterable[str], result: str) -> str:
        shared, factors = sp.cse(list(self.factors), symbols=sp.numbered_symbols("c"))
        head = [f"{symbol} = {print_source(value)}" for symbol, value in shared]
        pairs = zip(self.factors.values(), factors, strict=True)
        head += [f"{symbol} = {print_source(value)}" for symbol, value in pairs]
        used = set().union(*(f.free_symbols for f in self.factors), [CLASSES, RATIO, OTHER_OUTPUTS])
        body = [*unpack, *_parameters(self.flow, used), *head, *self.lines, f"return {result}"]
        return "\n    ".join([f"def {name}({arguments}):", *body]) + "\n"


def _parameters(flow: Flow, used: set) -> list[str]:
    lines = [f"{CLASSES} = parameters.classes", f"{RATIO} = parameters.ratio"]
    if flow.structure.vocabulary_head:
        lines.append(f"{OTHER_OUTPUTS} = parameters.other_outputs")
    lines += [
        f"{g.types} = parameters.types[{g.index}]" for g in flow.reduction.groups if g.types in used and g.types != 1
    ]
    return lines


def _softmaxes(flow: Flow, body: _Body) -> None:
    """Attentions and errors, from the coordinates to the log domain."""
    groups, outputs = flow.reduction.groups, flow.composition.outputs
    gaps = flow.coordinates.gaps
    counts = _tuple(print_source(g.count) if g.count != 1 else "_" for g in groups)
    body.add(counts, "columns(parameters.counts)")
    logits = []
    for g in groups:
        terms = [print_source(gaps[g.index])] * (gaps[g.index] != 0) + [f"log({g.count})"] * (g.count != 1)
        logits.append(" + ".join(terms) or "0.0")
    body.add("attention", f"softmax({_tuple(logits)})")
    for output in outputs:
        values = _tuple(print_source(output.values[g.index]) if g.index in output.values else "0.0" for g in groups)
        body.add(output.kind, f"attend(attention, {values}, log_rate)")
    sizes = _tuple(print_source(output.size) for output in outputs)
    body.add("error", f"errors({sizes}, {_tuple(output.kind for output in outputs)}, log_rate)")
    body.add("mean", "averaging(parameters.probabilities)")


def _movers(flow: Flow, body: _Body, outputs: Sequence[sp.Expr]) -> dict[sp.Expr, tuple[str, sp.Expr]]:
    """Score fluxes and means that the outputs are linear in: mover -> name in the source and factor it leaves out."""
    fluxes = dict(flow.fluxes.values())
    needed = set().union(*(e.free_symbols for e in outputs)) & fluxes.keys()
    means = set().union(*(e.atoms(Mean) for e in outputs), *(fluxes[f].atoms(Mean) for f in needed))
    moments = _moments(flow, body, sorted(means, key=str))
    names: dict[sp.Expr, tuple[str, sp.Expr]] = dict(moments)
    for flux in sorted(needed, key=str):
        terms = {mean: fluxes[flux].coeff(mean) for mean in sorted(fluxes[flux].atoms(Mean), key=str)}
        sizes = {moments[mean][1] for mean in terms}
        common = sizes.pop() if len(sizes) == 1 else sp.Integer(1)
        parts = [
            f"{body.factor(sp.cancel(moments[mean][1] / common))}{moments[mean][0]}*({print_source(difference)})"
            for mean, difference in terms.items()
        ]
        body.add(str(flux), " + ".join(parts))
        names[flux] = (str(flux), common)
    return names


def _moments(flow: Flow, body: _Body, means: Sequence[sp.Expr]) -> dict[sp.Expr, tuple[str, sp.Expr]]:
    """Emits the mean over compositions of every product of attentions and one error."""
    groups, outputs = flow.reduction.groups, flow.composition.outputs
    by_attention = {g.attention: g for g in groups}
    kinds = {output.error: k for k, output in enumerate(outputs)}
    parsed = {}
    for mean in means:
        factors = sp.Mul.make_args(mean.args[0])
        (kind,) = (kinds[f] for f in factors if f in kinds)
        parsed[mean] = kind, sorted(by_attention[f].index for f in factors if f in by_attention)
    # alpha_g q is formed in one exponential; prefer the group for which it is needed anyway
    alone = {(kind, members[0]) for kind, members in parsed.values() if len(members) == 1}
    emitted: set[str] = set()
    moments = {}
    for mean, (kind, members) in parsed.items():
        main = next((g for g in members if (kind, g) in alone), members[0])
        product = f"a{groups[main].index}_{outputs[kind].kind}"
        if product not in emitted:
            emitted.add(product)
            body.add(product, f"joint(attention, error, {main}, {kind})")
        others = list(members)
        others.remove(main)
        name = f"m_{'_'.join(groups[g].tag for g in members)}_{outputs[kind].kind}"
        factors = [f"attention.probabilities[{g}]" for g in others] + [product]
        body.add(name, f"mean({'*'.join(factors)})")
        moments[mean] = (name, outputs[kind].size)
    return moments


def _combine(flow: Flow, body: _Body, outputs: Sequence[sp.Expr], zero: str) -> list[str]:
    names = _movers(flow, body, outputs)
    results = []
    for expression in outputs:
        terms = {}
        for mover, coefficient in flow.linear_terms(expression).items():
            name, size = names[mover]
            terms[name] = sp.factor(coefficient * size)
        results.append(body.linear(terms) if terms else zero)
    return results


def _motion(flow: Flow) -> str:
    """The closed system: coordinates of collapsed circuits, factors of factorized ones."""
    body = _Body(flow)
    parts = flow.factorized_parts
    values = {block: flow.block_values[block] for part, _ in parts for row in part.blocks for block, *_ in row}
    for block, value in values.items():
        body.add(str(block), print_source(value))
    _readouts(flow, body, [symbol for symbol in flow.coordinates.state if symbol not in flow.velocity])
    _softmaxes(flow, body)
    closed = [symbol for symbol in flow.velocity if symbol in flow.coordinates.state]
    wanted = [flow.velocity[symbol] for symbol in closed] + [flow.gradient[block] for block in values]
    sources = iter(_combine(flow, body, wanted, "zeros_like(x[0])"))
    results = {symbol: next(sources) for symbol in closed}
    pulls = {block: sp.Symbol(f"G_{block}") for block in values}
    for name in pulls.values():
        body.add(str(name), next(sources))
    for part, side in parts:
        moved = side.circuit.velocity(part, pulls, side.rate)
        results.update(zip(side.circuit.state(part), map(print_source, moved), strict=True))
    result = _tuple(results[symbol] for symbol in flow.velocity)
    name = "reduced" if flow.closes else "motion"
    return body.render(name, "log_rate, x, parameters", [f"{_names(flow.velocity)} = x"], result)


def _displacement(flow: Flow) -> str:
    r"""The change of the coordinates with what moves: $dP\,Q + (P + dP)\,dQ$ of a product, without cancellation."""
    body = _Body(flow)
    change = {symbol: sp.Symbol(f"d_{symbol}") for symbol in flow.velocity}
    for part, side in flow.factorized_parts:
        order = side.circuit.state(part)
        for block, value in side.circuit.blocks(part).items():
            terms = []
            for term in sp.Add.make_args(value):
                p, q = (symbol for symbol in order if symbol in term.free_symbols)
                terms.append(f"{change[p]}*{q} + ({p} + {change[p]})*{change[q]}")
            body.add(str(block), " + ".join(terms))
    read = [symbol for symbol in flow.coordinates.state if symbol not in flow.velocity]
    _readouts(flow, body, read)
    result = _tuple(str(symbol if symbol in read else change[symbol]) for symbol in flow.coordinates.state)
    unpack = [f"{_names(flow.velocity)} = x", f"{_names(change.values())} = change"]
    return body.render("displacement", "x, change, parameters", unpack, result)


def _readouts(flow: Flow, body: _Body, wanted: Iterable[sp.Symbol]) -> None:
    """Coordinates from the blocks."""
    wanted = set(wanted)
    keys = [key for symbol, key in zip(flow.coordinates.state, flow.coordinates.keys, strict=True) if symbol in wanted]
    origin = flow.coordinates.readouts.get(("score", flow.coordinates.reference))
    if origin is not None and any(kind == "score" for kind, _ in keys):
        body.add("origin", _linear_source(body, flow.coordinates.weights["score", flow.coordinates.reference]))
    for symbol, key in zip(flow.coordinates.state, flow.coordinates.keys, strict=True):
        if symbol not in wanted:
            continue
        source = _linear_source(body, flow.coordinates.weights[key])
        body.add(str(symbol), f"({source}) - origin" if key[0] == "score" and origin is not None else source)


def _linear_source(body: _Body, weights: Mapping[sp.Symbol, sp.Expr]) -> str:
    return body.linear({str(symbol): weight for symbol, weight in weights.items()})


def _gradient(flow: Flow) -> str:
    body = _Body(flow)
    _readouts(flow, body, flow.coordinates.state)
    _softmaxes(flow, body)
    blocks = [block.symbol for block in flow.reduction.blocks]
    result = _tuple(_combine(flow, body, [flow.gradient[b] for b in blocks], "zeros_like(blocks[0])"))
    return body.render("gradient", "blocks, log_rate, parameters", [f"{_names(blocks)} = blocks"], result)


def _to_reduced(flow: Flow) -> str:
    body = _Body(flow)
    _readouts(flow, body, flow.coordinates.state)
    blocks = [block.symbol for block in flow.reduction.blocks]
    result = _names(flow.coordinates.state)
    return body.render("to_reduced", "blocks, parameters", [f"{_names(blocks)} = blocks"], result)


def _from_reduced(flow: Flow) -> str:
    body = _Body(flow)
    state = flow.coordinates.state
    recovered = flow.coordinates.recover({symbol: symbol for symbol in state})
    results = []
    for position, expression in enumerate(recovered.values()):
        moved = [symbol for symbol in state if symbol in expression.free_symbols]
        terms = {str(symbol): sp.factor(sp.diff(expression, symbol)) for symbol in moved}
        terms = {name: coefficient for name, coefficient in terms.items() if coefficient != 0}
        source = body.linear(terms)
        results.append(f"blocks[{position}]" + (f" + ({source})" if source else ""))
    return body.render("from_reduced", "change, blocks, parameters", [f"{_names(state)} = change"], _tuple(results))


def _names(symbols: Iterable[sp.Symbol]) -> str:
    return _tuple(str(symbol) for symbol in symbols)


def _tuple(items: Iterable[str]) -> str:
    items = list(items)
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


_SHARED = {"gradient": _gradient, "to_reduced": _to_reduced, "from_reduced": _from_reduced}
_CLOSED = {"reduced": _motion, **_SHARED}
_FACTORS = {"motion": _motion, "displacement": _displacement, **_SHARED}


def _emitters(flow: Flow) -> Mapping[str, Callable[[Flow], str]]:
    return _CLOSED if flow.closes else _FACTORS


def functions(flow: Flow) -> tuple[str, ...]:
    """The names of the functions of a flow's compiled field."""
    return tuple(_emitters(flow))
