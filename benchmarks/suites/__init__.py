"""Test suites of other projects on clusterfn: joblib's on our backend, Hydra's on our launcher.

`python -m benchmarks.suites FOLDER [TIMES]` copies both into a folder, where only the names of backends and launchers
are changed, runs them on a host that is this machine, and prints a line for each suite and each test that failed.
With TIMES, the programs and loops of joblib's suite may take so many times longer, for a busy machine.
"""
