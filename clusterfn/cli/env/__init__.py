"""`clusterfn env`: environments locked on this machine, and built, shown, repaired and removed on hosts.

`build` locks and builds, `manage` shows and removes, and `verify` repairs and tests. Data goes to stdout, sentences and
progress to stderr.
"""
