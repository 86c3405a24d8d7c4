"""`python -m clusterfn`: the same as the command `clusterfn`."""

from clusterfn.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
