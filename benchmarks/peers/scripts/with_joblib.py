"""joblib: loky's processes for all calls, which joblib sends in batches."""

import contest
from joblib import Parallel, delayed


def nothing(x: int) -> int:
    return x


with Parallel(n_jobs=contest.AT_ONCE) as parallel:
    contest.run(lambda count, _until: contest.checked(parallel(delayed(nothing)(x) for x in range(count))))
