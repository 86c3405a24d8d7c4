"""The pictures of the documentation are what their scripts in docs/pictures draw today."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("picture", ["call", "speed"])
def test_a_picture_is_what_its_script_draws(picture: str) -> None:
    assert (PICTURES / f"{picture}.svg").read_text(encoding="utf-8") == script(f"draw_{picture}").draw()


@pytest.mark.long
@pytest.mark.parametrize("name", ["terminal", "top"])
def test_the_terminal_shows_what_was_recorded(name: str) -> None:
    pytest.importorskip("pyte", reason="pyte is not installed: run make docs once")
    recorded = [(pause, text) for pause, text in json.loads((PICTURES / f"{name}.json").read_text(encoding="utf-8"))]

    assert (PICTURES / f"{name}.svg").read_text(encoding="utf-8") == script("record_terminal").draw(recorded, name)
