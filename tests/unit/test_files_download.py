"""Names of files that a host tells are not trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterfn import ClusterfnError
from clusterfn.download import _safe_parts

ANYWHERE = ["", ".", "/", "..", "../a", "a/..", "a/../../b", "/etc/passwd", "//a", "a\0b", "./.."]
ON_WINDOWS = [
    "C:x",
    "C:/x",
    "a/C:x",
    "..\\a",
    "a\\b",
    "\\a",
    "\\\\host\\share",
    "a:stream",
    "CON",
    "a/nul.txt",
    "a. ",
    "a.",
]


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("name", ANYWHERE)
def test_a_name_that_leads_out_is_refused(name, windows):
    with pytest.raises(ClusterfnError, match="the host names a file"):
        _safe_parts(name, windows=windows)


@pytest.mark.parametrize("name", ON_WINDOWS)
def test_a_name_that_means_more_on_windows_is_refused_there(name):
    with pytest.raises(ClusterfnError, match="the host names a file"):
        _safe_parts(name, windows=True)


@pytest.mark.parametrize("name", ["a", "a/b.pt", "a b", "ü", "...", "..a", "-n", "a\nb"])
def test_an_ordinary_name_is_taken_apart(name):
    assert _safe_parts(name, windows=False) == tuple(name.split("/"))


@pytest.mark.parametrize("name", ["epoch 12:30.pt", "a\\b"])
def test_what_is_an_ordinary_name_elsewhere_is_taken(name):
    assert _safe_parts(name, windows=False) == (name,)


@given(st.lists(st.sampled_from(["..", ".", "a", "/", "//", "\\", "\0", "C:", "b"])).map("".join))
def test_no_name_leads_out_of_the_folder(name):
    try:
        parts = _safe_parts(name, windows=False)
    except ClusterfnError:
        return
    base = Path("/chosen")
    assert os.path.normpath(base.joinpath(*parts)).startswith("/chosen/")
