"""What a growing ratio, weight decay and normalized gradients do to attention.

python examples/interventions.py
"""

import flowsim as fs

task = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
times = [100.0, 1000.0, 10_000.0]

interventions = {
    "plain": {},
    "ratio grows until t = 1000": {"schedule": fs.schedules.Growing(1000.0)},
    "weight decay on QK": {"weight_decay_qk": 1e-3},
    "weight decay on both": {"weight_decay_qk": 1e-3, "weight_decay_ov": 1e-4},
    "normalized QK gradient": {"normalize": "qk"},
}
print("attention of FAFO at ratio 1")
print(f"{'':28}" + "".join(f"{f't = {time:g}':>12}" for time in times))
for name, arguments in interventions.items():
    run = fs.integrate(task, "FAFO", ratio=1.0, times=times, **arguments)
    print(f"{name:28}" + "".join(f"{float(attention):12.4f}" for attention in run.attention))

# Growth laws end where decay and gradient balance; the equilibrium is a root, found by itself.
end = fs.equilibrium(task, "FAFO", ratio=1.0, weight_decay_qk=1e-3, weight_decay_ov=1e-4)
print(f"\nboth decays lead to attention {end.attention:.4f}, margin {end.margin:.4f} (slowest rate {end.rate:.1e})")

# A finite learning rate: the modified flow follows gradient descent where the plain one does not.
lr, steps = 0.5, 400
descent = fs.descend(task, "FAFO", ratio=1.0, lr=lr, steps=steps, points=2)
for order in (0, 1, 2):
    flow = fs.integrate(task, "FAFO", ratio=1.0, times=[lr * steps], step=lr, order=order)
    off = abs(float(flow.margin[0] - descent.margin[-1]))
    print(f"order {order}: margin off by {off:.1e} after {steps} steps of {lr}")
