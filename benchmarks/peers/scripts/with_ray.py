"""ray: the same workers for all calls (argv[5] "reused"), or with `max_calls=1` a worker for each."""

import os
import sys
import time

import contest

os.environ["RAY_AUTH_MODE"] = "disabled"  # otherwise it writes into the home directory
import ray


def nothing(x: int) -> int:
    return x


ray.init(num_cpus=contest.AT_ONCE, include_dashboard=False, log_to_driver=False, _temp_dir=os.getcwd())
task = ray.remote(nothing) if sys.argv[5] == "reused" else ray.remote(max_calls=1)(nothing)


def calls(count: int, until: float) -> int:
    wanted = [task.remote(x) for x in range(count)]
    done, late = ray.wait(wanted, num_returns=count, timeout=max(0.0, until - time.monotonic()))
    for each in late:
        ray.cancel(each)
    return len(done) if late else contest.checked(ray.get(wanted))


contest.run(calls)
ray.shutdown()
