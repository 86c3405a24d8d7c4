"""A Jupyter kernel as the library sees it: a stderr of ipykernel, and outputs below the present cell."""

from __future__ import annotations

import io
import sys

import IPython
import IPython.display
import pytest


class FakeShell:
    execution_count = 1
    kernel = object()


class FakeNotebook:
    """What a notebook shows.

    Attributes:
        outputs: display_id -> the bundle that is shown now, in the order in which they appeared.
        stderr: What is shown in a red box.
        shell: `execution_count` is the number of the cell that runs.
        updates: How often an output was replaced.
    """

    def __init__(self):
        self.outputs, self.updates = {}, 0
        self.stderr = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
        self.shell = FakeShell()

    def display(self, bundle, raw, display_id=None):
        assert raw and (display_id is None or display_id not in self.outputs)
        self.outputs[display_id or f"output {len(self.outputs)}"] = bundle

    def update_display(self, bundle, raw, display_id):
        assert raw and display_id in self.outputs
        self.updates += 1
        self.outputs[display_id] = bundle

    def __enter__(self):
        """Begin a cell: pytest sets stderr itself between a fixture and its test."""
        self._before, sys.stderr = sys.stderr, self.stderr
        return self

    def __exit__(self, *_):
        sys.stderr = self._before

    @property
    def plain(self):
        return [bundle["text/plain"] for bundle in self.outputs.values()]


@pytest.fixture
def notebook(monkeypatch):
    fake = FakeNotebook()
    monkeypatch.setattr(IPython, "get_ipython", lambda: fake.shell)
    monkeypatch.setattr(IPython.display, "display", fake.display)
    monkeypatch.setattr(IPython.display, "update_display", fake.update_display)
    return fake
