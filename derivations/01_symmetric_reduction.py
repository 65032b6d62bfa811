r"""Derivation 1: the symmetric reduction.

Claim. A single attention head with matrices W_QK (tokens x queries) and W_OV (outputs x tokens), trained by gradient
flow or gradient descent on the population loss of a symmetric task, never leaves the symmetric matrices when it starts
on them. There each circuit is a handful of numbers, its *blocks*, and the population loss and its gradient are
functions of the blocks alone.

Assumptions.
  A1. Tokens, queries and outputs are orthonormal vectors, so the matrices may be read entry by entry.
  A2. K classes, equally likely. Token groups are distinct (each class has its own tokens), common (all classes see the
      same tokens) or null (zero embedding: score 0, no value, no parameters).
  A3. Attention is a softmax over positions without positional information, so only counts matter; every token of a
      group appears count/types times (the mean over random identities has the same gradient on the symmetric line).
  A4. The loss is softmax cross-entropy of the attended logits.

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

import itertools

import sympy as sp

from flowsim.task import Structure
from flowsim.theory import derive, reduce
from flowsim.theory.loss import attention_of, composition_loss
from flowsim.theory.symbols import CLASSES, LEAD, OTHER_OUTPUTS, REST_LEAD

K, R = CLASSES, OTHER_OUTPUTS
LABELS = Structure(("distinct", "common"), "per-class", None, False)
SHARED = Structure(("distinct", "common"), "shared", None, False)
VOCABULARY = Structure(("distinct", "common"), "per-class", None, True)


def main() -> None:
    """All steps in order."""
    two_representations()
    as_many_blocks_as_invariant_matrices()
    entries_from_blocks()
    metric()
    loss_of_the_blocks()
    gradient_of_the_blocks()


def two_representations() -> None:
    r"""Step 1. Over the classes there are two representations, standard and trivial.

    A K x K matrix that commutes with all permutations has one diagonal entry a and one off-diagonal entry b. Such
    matrices multiply as below, for every K; J/K (constant) and I - J/K (sum zero) are the two projectors in that
    algebra, so every such matrix is s (I - J/K) + t J/K.
    """
    heading("1", "two representations of the class permutations")

    def product(first, second):
        (a, b), (c, d) = first, second
        return sp.simplify(a * c + (K - 1) * b * d), sp.simplify(a * d + b * c + (K - 2) * b * d)

    trivial, standard, nothing = (1 / K, 1 / K), ((K - 1) / K, -1 / K), (0, 0)
    assert product(trivial, trivial) == trivial
    assert all(sp.simplify(x - y) == 0 for x, y in zip(product(standard, standard), standard, strict=True))
    assert product(trivial, standard) == nothing
    assert [sp.simplify(x + y) for x, y in zip(trivial, standard, strict=True)] == [1, 0]
    dimensions = [sp.simplify(K * diagonal) for diagonal, _ in (standard, trivial)]  # traces of the projectors
    assert dimensions == [K - 1, 1]
    print("  projector on the standard part: diagonal (K-1)/K, off-diagonal -1/K, dimension K-1")
    print("  projector on the trivial part:  diagonal 1/K,     off-diagonal 1/K,  dimension 1")


def as_many_blocks_as_invariant_matrices() -> None:
    """Step 2. The blocks are all there is: counting the invariant matrices of a small case.

    For 3 classes, 2 types in each group and 2 never-labels, the matrices that no permutation of classes, types or
    never-labels changes form a space; its dimension is the number of blocks.
    """
    heading("2", "as many blocks as invariant matrices")
    classes, types, rest = 3, 2, 2
    tokens = [("distinct", k, i) for k in range(classes) for i in range(types)]
    tokens += [("common", 0, i) for i in range(types)]
    outputs = [("label", k, 0) for k in range(classes)] + [("rest", 0, i) for i in range(rest)]
    queries = [("query", k, 0) for k in range(classes)]
    moves = [
        lambda kind, k, i: (kind, k if kind in ("common", "rest") else (1, 0, 2)[k], i),  # swap two classes
        lambda kind, k, i: (kind, k if kind in ("common", "rest") else (1, 2, 0)[k], i),  # rotate the classes
        lambda kind, k, i: (kind, k, 1 - i if kind == "distinct" else i),  # swap the types of the distinct group
        lambda kind, k, i: (kind, k, 1 - i if kind == "common" else i),
        lambda kind, k, i: (kind, k, 1 - i if kind == "rest" else i),
    ]
    blocks = reduce(VOCABULARY)
    for name, rows, columns, matrix in (("QK", tokens, queries, blocks.qk), ("OV", outputs, tokens, blocks.ov)):
        cells = list(itertools.product(rows, columns))
        place = {cell: index for index, cell in enumerate(cells)}
        equations = []
        for move in moves:
            for index, (row, column) in enumerate(cells):
                target = place[move(*row), move(*column)]
                if target != index:
                    equations.append((index, target))
        dimension = len(cells) - _rank_of_equalities(len(cells), equations)
        assert dimension == len(matrix.blocks)
        names = ", ".join(str(block.symbol) for block in matrix.blocks)
        print(f"  {name}: {len(cells)} entries, {dimension} invariant matrices, blocks {names}")


def entries_from_blocks() -> None:
    """Step 3. The entries in terms of the blocks, against the closed expressions."""
    heading("3", "entries from blocks")
    c, d = sp.symbols("C D", positive=True)
    full, shared = reduce(VOCABULARY), reduce(SHARED)
    s, t, t_c, big_s, t1, t1_c, t2, t2_c = (block.symbol for block in full.blocks)
    t_shared, t_c_shared = (block.symbol for block in shared.qk.blocks)
    expected = [
        ("QK, distinct, own class", full.score(0), ((K - 1) * s + t) / (K * sp.sqrt(c))),
        ("QK, distinct, other class", full.score(0, own_class=False), (t - s) / (K * sp.sqrt(c))),
        ("QK, common", full.score(1), t_c / sp.sqrt(d * K)),
        ("QK, shared query, distinct", shared.score(0), t_shared / sp.sqrt(K * c)),
        ("QK, shared query, common", shared.score(1), t_c_shared / sp.sqrt(d)),
        ("OV, distinct, own label", full.logit(0, "own"), ((K - 1) * big_s + t1) / (K * sp.sqrt(c))),
        ("OV, distinct, other label", full.logit(0, "other"), (t1 - big_s) / (K * sp.sqrt(c))),
        ("OV, distinct, never-label", full.logit(0, "rest"), t2 / sp.sqrt(R * K * c)),
        ("OV, common, every label", full.logit(1, "own"), t1_c / sp.sqrt(K * d)),
        ("OV, common, never-label", full.logit(1, "rest"), t2_c / sp.sqrt(R * d)),
    ]
    for name, entry, formula in expected:
        assert sp.simplify(entry - formula) == 0, name
        print(f"  {name:27s} {sp.sstr(sp.factor(formula))}")
    assert full.logit(1, "own") == full.logit(1, "other")


def metric() -> None:
    """Step 4. The Frobenius norm of a symmetric matrix counts each block as often as its representation has dimensions.

    A matrix on which the gradient is taken entry by entry therefore has blocks (1/d_rho) dL/dB in its gradient.
    """
    heading("4", "the metric of the full matrices on the blocks")
    c, d = sp.symbols("C D", positive=True)
    full = reduce(VOCABULARY)
    own, other = K * c, K * (K - 1) * c  # number of entries of each kind
    qk = own * full.score(0) ** 2 + other * full.score(0, own_class=False) ** 2 + K * d * full.score(1) ** 2
    ov = own * full.logit(0, "own") ** 2 + other * full.logit(0, "other") ** 2 + R * K * c * full.logit(0, "rest") ** 2
    ov += K * d * full.logit(1, "own") ** 2 + R * d * full.logit(1, "rest") ** 2
    for name, norm, matrix in (("QK", qk, full.qk), ("OV", ov, full.ov)):
        blocks = sp.Add(*(block.dimension * block.symbol**2 for block in matrix.blocks))
        assert sp.simplify(sp.expand(norm) - sp.expand(blocks)) == 0
        print(f"  |W_{name}|^2 = {sp.sstr(blocks)}")


def loss_of_the_blocks() -> None:
    r"""Step 5. The loss of one composition in the blocks.

    Attention on a group is a softmax over its positions; the logits are attention-weighted entries; cross-entropy
    depends on differences of logits only.
    """
    heading("5", "the reduced loss")
    full = reduce(VOCABULARY)
    loss = composition_loss(VOCABULARY)
    groups = full.groups
    alpha = attention_of(groups)
    assert sp.simplify(sum(alpha.values()) - 1) == 0
    z = {kind: sum(g.attention * full.logit(g.index, kind) for g in groups) for kind in ("own", "other", "rest")}
    cross_entropy = -sp.log(
        sp.exp(z["own"]) / (sp.exp(z["own"]) + (K - 1) * sp.exp(z["other"]) + R * sp.exp(z["rest"]))
    )
    in_readouts = loss.loss.subs({LEAD: z["own"] - z["other"], REST_LEAD: z["rest"] - z["own"]})
    numbers = {symbol: sp.Rational(i + 3, 5) for i, symbol in enumerate(sorted(cross_entropy.free_symbols, key=str))}
    assert abs(sp.N((cross_entropy - in_readouts).subs(numbers), 40)) < sp.Float("1e-35")
    # the same for every value of the symbols: both are the logarithm of a sum, and the ratio of the sums is 1
    ratio = sp.exp(-cross_entropy) * sp.exp(in_readouts)
    assert sp.simplify(sp.powsimp(sp.expand(ratio))) == 1
    for output in loss.outputs:
        attended = sp.Add(*(groups[g].attention * value for g, value in output.values.items()))
        relative = sp.Add(*(groups[g].attention * value for g, value in output.in_blocks.items()))
        assert sp.simplify(relative - (z[output.kind] - z["own"])) == 0
        print(f"  {output.lead} = {sp.sstr(output.sign * attended)}")
    print(f"  loss  = {sp.sstr(loss.loss)}")


def gradient_of_the_blocks() -> None:
    r"""Step 6. The gradient of the full matrices at a symmetric point is symmetric, and its blocks are (1/d) dL/dB.

    Two classes, one type in each group, one never-label: the loss with all 3 x 2 + 3 x 3 entries free is differentiated
    entry by entry, at a symmetric point, and compared in 40 digits.
    """
    heading("6", "the gradient of the full matrices has blocks G = (1/d) dL/dB")
    classes = 2
    m, n = sp.Rational(3), sp.Rational(2)
    qk = sp.Matrix(3, classes, sp.symbols("a:6", real=True))  # tokens: distinct of class 0 and 1, common
    ov = sp.Matrix(3, 3, sp.symbols("b:9", real=True))  # outputs: labels 0 and 1, never-label
    loss = sp.Integer(0)
    for k in range(classes):
        weights = [m * sp.exp(qk[i, k]) if i == k else (n * sp.exp(qk[i, k]) if i == 2 else 0) for i in range(3)]
        attention = sp.Matrix([weight / sum(weights) for weight in weights])
        logits = ov * attention
        loss += (sp.log(sum(sp.exp(logit) for logit in logits)) - logits[k]) / classes

    flow = derive(VOCABULARY)
    reduction = flow.reduction
    sizes = {K: classes, R: 1} | {g.types: 1 for g in reduction.groups}
    sizes |= {g.count: value for g, value in zip(reduction.groups, (m, n), strict=True)}
    values = {block.symbol: sp.Rational((-1) ** i * (i + 2), 9) for i, block in enumerate(reduction.blocks)}

    def matrices(blocks):
        def score(token, query):
            return reduction.score(0, own_class=token == query) if token < 2 else reduction.score(1)

        def logit(output, token):
            kind = "rest" if output == 2 else ("own" if output == token or token == 2 else "other")
            return reduction.logit(0 if token < 2 else 1, kind)

        first = sp.Matrix(3, classes, lambda i, j: score(i, j).subs(sizes).subs(blocks))
        return first, sp.Matrix(3, 3, lambda i, j: logit(i, j).subs(sizes).subs(blocks))

    point = dict(zip([*qk, *ov], [*matrices(values)[0], *matrices(values)[1]], strict=True))
    full = [sp.N(sp.diff(loss, entry).subs(point), 40) for entry in (*qk, *ov)]

    definitions = dict(flow.fluxes.values())
    named = {g.attention: attention_of(reduction.groups)[g.index] for g in reduction.groups}
    readouts = {g.score: reduction.score(g.index) for g in reduction.groups}
    leads, errors = {}, {}
    for output in flow.composition.outputs:
        leads[output.lead] = output.sign * sp.Add(
            *(reduction.groups[g].attention * value for g, value in output.in_blocks.items())
        )
        errors[output.error] = output.definition
        for g, value in output.values.items():
            symbol = value.free_symbols.pop()
            readouts[symbol] = output.in_blocks[g] * value.coeff(symbol)
    gradient = {}
    for block, component in flow.gradient.items():
        single = component.xreplace(definitions).replace(lambda e: type(e).__name__ == "Mean", lambda e: e.args[0])
        bound = single.subs(errors).subs(leads).subs(named).subs(readouts).subs(sizes).subs(values)
        gradient[block] = sp.N(bound, 40)
    symmetric = matrices(gradient)
    worst = max(abs(a - b) for a, b in zip(full, [*symmetric[0], *symmetric[1]], strict=True))
    assert worst < sp.Float("1e-35")
    assert min(abs(value) for value in gradient.values()) > sp.Float("1e-4")
    print(f"  largest difference over all {len(full)} entries: {float(worst):.1e}")
    print("  collapsed circuits move as dB/dt = -eta G; in full, for labels only:")
    for block, component in derive(LABELS).block_velocity.items():
        print(f"    d{block}/dt = {sp.sstr(component)}")


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


def _rank_of_equalities(size: int, pairs: list[tuple[int, int]]) -> int:
    """Rank of the equations x_i = x_j: the number of merges until nothing is left to merge."""
    root = list(range(size))

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    merges = 0
    for i, j in pairs:
        a, b = find(i), find(j)
        if a != b:
            root[a] = b
            merges += 1
    return merges


if __name__ == "__main__":
    main()
