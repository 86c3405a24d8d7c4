"""`python -m clusterfn.environment.solve`: one job from stdin, answers on stdout; see `program`."""

from clusterfn.environment.solve.program import main

main()
