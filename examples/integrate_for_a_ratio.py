"""How do margin, score gap and attention grow for one learning-rate ratio?

python examples/integrate_for_a_ratio.py
"""

import flowsim as fs

# 4 classes; 10 distinct token types per class and 10 common ones; 32 distinct and 31 common positions per sequence.
task = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
print(fs.derive(task), "\n")

times = [1, 10, 100, 1000, 1e4, 1e6]
ode = fs.integrate(task, "CACO", ratio=5.0, times=times)  # diffrax, works for every task
exact = fs.exact(task, "CACO", ratio=5.0, times=times)  # the closed form, where there is one

print(f"{'time':>8} {'margin':>12} {'score gap':>12} {'attention':>10} {'exact - ODE':>12}")
for i, time in enumerate(times):
    error = float(exact.margin[i] - ode.margin[i])
    print(f"{time:8g} {ode.margin[i]:12.8f} {ode.score_gap[i]:12.8f} {ode.attention[i]:10.6f} {error:12.1e}")

# Which ratio puts 99 % of the attention on the distinct tokens soonest?
for ratio in (0.1, 1.0, 10.0, 100.0):
    log_time = fs.time_to(task, "CACO", ratio=ratio, attention=0.99)
    print(f"ratio {ratio:5g}: attention 0.99 at ln t = {float(log_time):.3f}")
