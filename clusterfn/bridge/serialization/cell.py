"""Run the text of a notebook's cell inside a job, and collect what it displays: values, figures, rich output.

Needs no IPython there. A display becomes what IPython calls a bundle: a dict from MIME types to data.
"""

from __future__ import annotations

import ast
import base64
import builtins
import importlib.util
import inspect
import io
import linecache
import os
import pprint
import sys
from collections.abc import Sequence
from typing import Any

from .exception_parts import attempt

# An exception carries under this name what was displayed before it.
SHOWN = "_clusterfn_shown"
_BACKEND = "module://%s.cell_figures" % __package__
_WAYS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}
_shown: list[dict[str, Any]] = []
# pyplot keeps a figure open after the cell has displayed it: this list prevents that it appears twice.
_figures: list[Any] = []


def run_cell(source: str, file: str, values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Run a cell as a module's code, in `__main__`.

    Args:
        source: Its text, with as many lines above it as it has in the notebook.
        file: What tracebacks call its file.
        values: Variables that it finds.
        names: Variables whose values are returned.

    Returns:
        `values`, a dict of those that are set; `missing`, the names of the others; `shown`, a bundle for each display.

    Raises:
        Exception: What the cell raises, with the displays before it as the attribute `SHOWN`.
    """
    scope = vars(sys.modules["__main__"])
    scope.update(values)
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    _collect_displays(source)
    try:
        value = _run(source, file, scope)
        if value is not None:
            display(value)
        show_figures()
    except BaseException as error:  # the user's cell may raise anything
        attempt(show_figures)
        if _shown:
            attempt(object.__setattr__, error, SHOWN, _shown)
        raise
    results = {name: scope[name] for name in names if name in scope}
    return {"values": results, "missing": [name for name in names if name not in results], "shown": _shown}


def _run(source: str, file: str, scope: dict[str, Any]) -> Any:
    """Return the value of its last line, if that is an expression which no semicolon follows."""
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    parts: list[tuple[ast.Module | ast.Expression, str]] = [(tree, "exec")]
    if isinstance(last, ast.Expr):
        parts.append((ast.Expression(last.value), "eval"))
    value = None
    loop = None
    try:
        for part, mode in parts:
            code = compile(part, file, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            value = eval(code, scope)
            if code.co_flags & inspect.CO_COROUTINE:
                # Few cells await, and the import takes 60 ms.
                import asyncio

                # Both parts of the cell share one loop: tasks that the body starts continue while the last line runs.
                loop = loop or asyncio.new_event_loop()
                value = loop.run_until_complete(value)
    finally:
        if loop is not None:
            loop.close()
    return None if source.rstrip().endswith(";") else value


def display(*objects: Any, **_: Any) -> None:
    """Display objects below the cell, as IPython's function of this name."""
    for obj in objects:
        if is_figure(obj):
            _figures.append(obj)
        _shown.append(bundle_of(obj))


def is_figure(obj: Any) -> bool:
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(obj, module.Figure)


def bundle_of(obj: Any) -> dict[str, Any]:
    """Return an object as a bundle: what its methods for IPython return, and its text."""
    bundle: dict[str, Any] = {"text/plain": _text(obj)}
    if is_figure(obj):
        bundle["image/png"], _ = attempt(picture, obj)
    if isinstance(obj, type):
        return bundle
    for way, mime in _WAYS.items():
        shown = _made_by(obj, way)
        if shown is not None:
            bundle[mime] = shown
    shown = _made_by(obj, "_repr_mimebundle_")
    if isinstance(shown, dict):
        bundle.update(shown)
    made_of = {mime: data for mime, data in bundle.items() if data is not None}
    return {
        mime: base64.b64encode(data).decode() if isinstance(data, bytes) else data for mime, data in made_of.items()
    }


def picture(figure: Any) -> bytes:
    """Return a figure of matplotlib as PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=figure.dpi, bbox_inches="tight")
    return file.getvalue()


def _made_by(obj: Any, way: str) -> Any:
    """Return what a method for IPython returns, without metadata; None if there is none, or it fails."""
    method, _ = attempt(getattr, obj, way, None)
    shown, _ = attempt(method) if callable(method) else (None, None)
    return shown[0] if isinstance(shown, tuple) and shown else shown


def _text(obj: Any) -> str:
    text, failed = attempt(pprint.pformat if isinstance(obj, (list, tuple, dict, set)) else repr, obj)
    return "<%s: its __repr__ raised %s>" % (type(obj).__name__, type(failed).__name__) if failed else str(text)


def _collect_displays(source: str) -> None:
    """Let `display`, also IPython's own if the cell imports it, and figures of pyplot come here."""
    _shown.clear()
    _figures.clear()
    builtins.display = display  # type: ignore[attr-defined]
    if "IPython" in source and importlib.util.find_spec("IPython") is not None:
        for module in ("IPython.core.display_functions", "IPython.display"):
            importlib.import_module(module).display = display  # type: ignore[attr-defined]
    # A job on the notebook's own machine inherits the notebook's backend, which displays figures there.
    if "inline" in os.environ.get("MPLBACKEND", "inline"):
        os.environ["MPLBACKEND"] = _BACKEND


def show_figures() -> None:
    """Display the figures of pyplot that are open and were not displayed, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        opened = [pyplot.figure(number) for number in pyplot.get_fignums()]
        display(*(figure for figure in opened if not any(figure is other for other in _figures)))
        pyplot.close("all")
