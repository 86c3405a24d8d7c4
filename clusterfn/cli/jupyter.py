"""`clusterfn kernel` and `clusterfn jupyter`: kernels, and the whole of JupyterLab, that run in a job on a host."""

from __future__ import annotations

import argparse
import html
import sys
import tempfile
import webbrowser
from pathlib import Path

from clusterfn.bridge.supervisor.text import counted
from clusterfn.cli.kernel import OPTIONS, read_options
from clusterfn.errors import ConfigError
from clusterfn.integrations.jupyter import jupyter_files, kernel_job, near_end, tunnel


def add(args: argparse.Namespace) -> int:
    """Write a kernelspec, after what can be known to be wrong with it was rejected."""
    args.environment = jupyter_files.absolute_environment(args.environment)
    options, _ = read_options(args)
    host = kernel_job.host_for_kernel(options).host
    if not (args.environment or host.environment):
        problem = f"no environment is named for the kernel, and {host.name} has none in clusterfn.yml"
        hint = "write --environment conda:NAME, or a file such as environment.yml; it must have ipykernel"
        raise ConfigError(problem, hint=hint)
    args.host = host.name
    title = args.name or " · ".join([args.host, *([counted(args.gpus, "GPU")] if args.gpus else [])])
    # `kernel run` reads what was given.
    words = [host.name]
    for name in (*OPTIONS, "idle"):
        if (value := getattr(args, name)) is not None:
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name.replace('_', '-')}", str(one)]
    added = jupyter_files.add_kernelspec(title, host.name, words)
    print(f"added {added} as {title!r}: choose it in Jupyter or VS Code", file=sys.stderr)
    return 0


def jupyter(args: argparse.Namespace) -> int:
    """Run JupyterLab on a host, and open it in the local browser."""
    args.environment = jupyter_files.absolute_environment(args.environment)
    options, idle_s = read_options(args, "jupyter")
    with tempfile.TemporaryDirectory(prefix="clusterfn-lab-") as folder:

        def announce(address: str, host: str) -> None:
            print(address, flush=True)
            print(f"clusterfn: JupyterLab runs on {host}; Ctrl-C ends it and its job", file=sys.stderr, flush=True)
            if args.browser:
                # Only this user can read the page: every user can read the arguments of a browser.
                page = Path(folder, "open.html")
                goal = html.escape(address)
                text = f'<meta http-equiv="refresh" content="0; url={goal}"><a href="{goal}">JupyterLab</a>'
                page.write_text(text, encoding="utf-8")
                webbrowser.open(page.as_uri())

        code = tunnel.open_lab(options, idle_s, args.port, announce)
    near_end.exit_at_once(code)
    return code
