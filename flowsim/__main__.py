"""`python -m flowsim` is the `flowsim` command."""

from flowsim.cli import main

main()
