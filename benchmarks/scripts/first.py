"""A fresh process whose only work is one call on the host argv[1]."""

import sys

from clusterfn import cluster


@cluster(host=sys.argv[1])
def double(x: int) -> int:
    return 2 * x


print(double(21), flush=True)
