"""When JAX's double precision is switched on."""

import os
import subprocess
import sys

import pytest

TYPE = "print(jax.jit(lambda x: x)(2.0).dtype)"


@pytest.mark.parametrize(
    ("code", "environment", "seen"),
    [
        (f"import flowsim, jax; {TYPE}", {}, "float64"),  # before a first jit, which no later switch would reach
        (f"import jax, flowsim; {TYPE}", {}, "float64"),
        (f"import flowsim, jax; {TYPE}", {"FLOWSIM_X64": "0"}, "float32"),
        (f"import jax, flowsim; {TYPE}", {"FLOWSIM_X64": "0"}, "float32"),
    ],
)
def test_importing_flowsim_is_enough(code, environment, seen):
    plain = {name: value for name, value in os.environ.items() if name not in ("JAX_ENABLE_X64", "FLOWSIM_X64")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=plain | environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [seen]
