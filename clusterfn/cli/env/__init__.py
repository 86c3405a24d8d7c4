"""`clusterfn env`: environments locked on this machine, and built, shown, repaired and removed on hosts.

`build` locks and builds, `manage` shows, verifies and removes. Data goes to stdout, sentences and progress to stderr.
"""
