"""`%%cluster`: run a cell on a host. Named variables go in and out, and what it displays appears below the cell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from clusterfn.bridge.supervisor.text import printable
from clusterfn.calls import call, user_modules
from clusterfn.config import config_file
from clusterfn.config.host_text import reading
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import serialization
from clusterfn.jupyter import cell_options, cell_source
from clusterfn.public_api import public_api

_NAME = "cell"


def load(shell: Any) -> None:
    """Add `%%cluster` to an IPython shell."""

    def cluster(line: str, cell: str | None = None) -> None:
        __tracebackhide__ = True
        run_cell(shell, line, cell)

    cluster.__doc__ = run_cell.__doc__
    shell.register_magic_function(cluster, "line_cell", "cluster")


@public_api
def run_cell(shell: Any, line: str, cell: str | None) -> None:
    """Run the cell on a host, as a function of its own.

        %%cluster --host tensor01 --gpus 1 -i data -o result
        result = train(data)

    Options:
        -i NAME: Send this variable of the notebook; several as -i a -i b or -i a,b. Nothing else is sent.
        -o NAME: Set this variable of the notebook to its value in the cell.
        --host, --cores, --memory, --gpus, …: The options of `@cluster`, with their values behind them.

    Raises:
        ConfigError: Before anything is sent: an unknown option, a variable that does not exist or is never set.
        ClusterfnError: The cell ended without setting a variable that `-o` names.
        Exception: What the cell raises.
    """
    if cell is None or not cell.strip():
        raise ConfigError("%%cluster needs a cell", hint="write %%cluster … in the first line, and the code below it")
    asked = cell_options.parse_line(line)
    values = cell_options.values_of(asked.inputs, shell.user_ns)
    file, source = _file_of_cell(shell.user_ns), "\n" + cell  # the line of %%cluster counts
    cell_source.check_names(cell_source.names_in(source, file), asked.inputs, asked.outputs, shell.user_ns)
    wire = serialization.part("cell")
    try:
        told = call.run_call(
            wire.run_cell,
            (source, file, values, asked.outputs),
            {},
            asked.options if asked.options.name else asked.options._replace(name=_NAME),
            user_modules.imported(source),
        )
    except Exception as error:  # the cell's own
        _show(vars(error).pop(wire.SHOWN, ()))
        raise
    chosen = config_file.host_of_call(asked.options)
    is_data = chosen.host.result_policy(chosen.options.results).data_only
    values, shown = read_result(told, asked.outputs, chosen.host.name, is_data)
    _show(shown)
    shell.user_ns.update(values)
    missing = [name for name in asked.outputs if name not in values]
    if missing:
        names = ", ".join(missing)
        raise ClusterfnError(f"%%cluster -o: the cell ended without setting {names}", hint="set it on every path")


def read_result(
    told: Any, wanted: Sequence[str], host: str, is_data: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Take what a cell returned: the variables that were asked for and no others, and what it displayed.

    Args:
        told: As the host sent it.
        wanted: The names of the variables.
        host: Its name.
        is_data: Whether only plain data comes from it: then its HTML and JavaScript do not run in this notebook.

    Raises:
        HostError: It is nothing that a cell returns.
    """
    with reading(host, "the result of the cell"):
        values = {name: told["values"][name] for name in wanted if name in told["values"]}
        shown = [dict(bundle) for bundle in told["shown"]]
    if not is_data:
        return values, shown
    plain = [{kind: each for kind, each in bundle.items() if kind in _PICTURES} for bundle in shown]
    for bundle, whole in zip(plain, shown):
        text = whole.get("text/plain")
        bundle["text/plain"] = printable(text if type(text) is str else "(not shown: it is no text and no picture)")
    return values, plain


_PICTURES = ("image/png", "image/jpeg")  # of the types that a notebook shows, those that run nothing


def _file_of_cell(variables: Any) -> str:
    """Return the name under which tracebacks know the cell that runs."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is variables:
            return frame.f_code.co_filename
        frame = frame.f_back
    return "<cell>"


def _show(bundles: Any) -> None:
    from IPython.display import display

    for bundle in bundles:
        display(bundle, raw=True)
