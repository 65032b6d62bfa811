"""Which ratio of learning rates gives the attention one wants? And does it?

python examples/inverse_design.py
"""

import flowsim as fs

task = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))

print(f"{'':4} {'ratio':>12} {'attention there':>16} {'ln t there':>11}")
for name in ("CACO", "FACO", "CAFO", "FAFO"):
    # attention 0.9 exactly when the loss is 0.01: equal performance, equal attention
    ratio = float(fs.ratio_for(task, name, attention=0.9, loss=0.01))
    reached = fs.exact(task, name, ratio=ratio, losses=[0.01])
    print(f"{name} {ratio:12.6g} {reached.attention[0]:16.12f} {reached.log_time[0]:11.4f}")

# The paper's Lemma 3: attention rises with the ratio, at equal performance too.
swept = fs.exact(task, "FAFO", ratio=[0.1, 1.0, 10.0], losses=[0.1, 0.01])
print("\nFAFO at loss 0.1 and 0.01:")
for ratio, row in zip((0.1, 1.0, 10.0), swept.attention, strict=True):
    print(f"ratio {ratio:4g}: attention {row[0]:.4f}, {row[1]:.4f}")
