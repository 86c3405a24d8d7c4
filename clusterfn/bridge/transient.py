"""Whether the table of CUDA's errors says that an exception passes."""

from __future__ import annotations


def row_of(error: BaseException) -> dict[str, str] | None:
    """What the table calls it, and where trying again can help; None if it does not pass.

    The table is that of `clusterfn.gpu`, as the environment has it or as it came with the bridge.
    """
    try:
        from clusterfn.gpu.sorting import classify
    except ImportError:  # the environment has a clusterfn that is older than the table
        return None
    fault = classify(error)
    return {"name": fault.name, "retry": fault.retry} if fault.transient else None
