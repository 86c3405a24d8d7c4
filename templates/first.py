"""Written by `clusterfn init`. Change the function into your own; what it needs is said in the brackets."""

import platform

from clusterfn import cluster


@cluster(host="HOST", cores=1, memory="1GB", time="5min")
def where(greeting):
    return f"{greeting} from {platform.node()}, Python {platform.python_version()}"


if __name__ == "__main__":
    print(where("hello"))
