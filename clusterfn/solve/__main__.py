"""`python -m clusterfn.solve`: one job from stdin, answers on stdout; see `program`."""

from clusterfn.solve.program import main

main()
