"""Do the margin and the score gap really grow as log t and log^2 t, and with which constants?

python examples/verify_growth.py
"""

import numpy as np

import flowsim as fs

task = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))

# A law in log t is only seen over decades of log t, so the closed form goes to t = exp(1e6).
log_times = np.geomspace(1.0, 1e6, 300)
exact = fs.exact(task, "CACO", ratio=[1e-6, 1.0], log_times=log_times)
print(fs.verify(exact))

# A judge that cannot say no proves nothing: the same margin, 5 % too large, must fail.
forged = fs.Trajectory.from_arrays(margin=1.05 * np.asarray(exact.margin[1]), log_times=log_times, task=task, ratio=1.0)
row = fs.verify(forged).rows[0]
print(f"forged {row.observable} as {row.law}: {row.verdict}, {row.reason}")
