"""`clusterfn env`: environments locked here, and built, shown, mended and removed on hosts.

`build` locks and builds, `manage` shows, verifies and removes. Data goes to stdout, sentences and progress to stderr.
"""
