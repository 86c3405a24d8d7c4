"""What `dask_client` asks of its caller, on a machine without dask."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import clusterfn


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "workers=None is not a whole number of at least 1"),
        ({"workers": 2, "memory": "2"}, "memory='2' is not an amount of memory"),
        ({"workers": 2, "idle": "5"}, "idle='5' is not a duration"),
        ({"workers": 2}, r"needs dask and distributed on this machine(?s:.*)next:  pip install '\.\[dask\]'"),
    ],
)
def test_arguments_are_checked_before_dask_is_imported(asked: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(clusterfn.ConfigError, match=says):
        clusterfn.dask_client("local", **asked)
