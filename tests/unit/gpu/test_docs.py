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


def test_every_public_name_is_explained_in_order_and_every_function_has_an_example():
    assert gpu.__all__ == sorted(gpu.__all__)
    for name in gpu.__all__:
        explained = getattr(gpu, name).__doc__ or ""
        assert explained and f"`{name}" in PAGE, name
        assert not name[0].islower() or ">>>" in explained, name
