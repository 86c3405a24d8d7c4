"""`python -m clusterfn.environment.solve`: one job from stdin, answers on stdout; see `program`."""

from .program import main

main()
