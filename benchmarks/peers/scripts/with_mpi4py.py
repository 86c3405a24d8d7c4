"""mpi4py.futures: the same MPI processes for all calls. They import this file again, without its words."""

from mpi4py.futures import MPIPoolExecutor


def nothing(x: int) -> int:
    return x


def main() -> None:
    import contest

    with MPIPoolExecutor(contest.AT_ONCE) as pool:
        contest.run(lambda count, until: contest.gathered([pool.submit(nothing, x) for x in range(count)], until))
        pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
