"""Solve locks in a program of its own: conda-lock, with the user's conda or with our stand-in for it on py-rattler.

It runs in whatever interpreter has conda-lock, which need not have clusterfn: nothing here imports the rest of the
library, and modules import each other by relative names, as the package may have another name there. Never imported
into the caller's process, but for `condarc`, which needs nothing: py-rattler may end a process by a signal.
`environment.solver` starts it; `program` says what it reads and answers.
"""
