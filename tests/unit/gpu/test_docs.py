"""The pages about clusterfn.gpu say what the code does, and its docstrings' examples run."""

from __future__ import annotations

import doctest
import importlib
import logging
import pkgutil
from pathlib import Path

import pytest

from clusterfn import gpu

PAGE = (Path(__file__).parents[3] / "docs/reference/gpu.md").read_text(encoding="utf-8")
MODULES = [f"clusterfn.gpu.{each.name}" for each in pkgutil.iter_modules(gpu.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_run(name):
    logging.getLogger("clusterfn.gpu").disabled = True
    try:
        assert doctest.testmod(importlib.import_module(name)).failed == 0
    finally:
        logging.getLogger("clusterfn.gpu").disabled = False


def test_every_public_name_is_explained_and_listed_in_the_reference():
    for name in gpu.__all__:
        assert getattr(gpu, name).__doc__
        assert f"`{name}" in PAGE


def test_every_function_has_an_example():
    functions = [getattr(gpu, name) for name in gpu.__all__ if name[0].islower()]

    assert [each.__name__ for each in functions if ">>>" not in (each.__doc__ or "")] == []


def test_what_is_public_is_in_order():
    assert gpu.__all__ == sorted(gpu.__all__)
