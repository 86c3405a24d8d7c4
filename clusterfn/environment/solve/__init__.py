"""Solve locks in a program of its own: conda-lock, with the user's conda or with our substitute for it on py-rattler.

It runs in an interpreter that has conda-lock and need not have clusterfn. So no module imports the rest of the library.
They import each other by relative names, because the package may have another name. Never imported into the caller's
process, but for `condarc`, which needs nothing: py-rattler may end a process by a signal. `environment.solver` starts
it; `program` says what it reads and answers.
"""
