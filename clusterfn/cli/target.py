"""Parse what a command is about: a host, and `file.py::function ARGS` as a function and its arguments.

The file is imported under its own name, as `import` from its folder would do. What it defines is sent by name, and its
`if __name__ == "__main__"` part does not run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import inspect
import itertools
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from clusterfn.api.decorator import ClusterFunction
from clusterfn.cli.command_line import FileFailed
from clusterfn.config import config_file, import_time
from clusterfn.config.options import HOST_VARIABLE
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, did_you_mean
from clusterfn.hosts.host_state import HostState, open_host

_OURS = str(Path(__file__).parents[1]) + os.sep
_KEYWORD = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def host(name: str | None, command: str) -> tuple[config_file.Config, Host, str]:
    """Return the same as `hosts` for a single host; raise ConfigError also for a list of several."""
    configuration, _, because = hosts(name, command)
    return configuration, configuration.resolve(name)[0], because


def hosts(name: str | None, command: str, after: str = "") -> tuple[config_file.Config, list[Host], str]:
    """Return the configuration, the hosts of that name (None: those of a call without one), and what decided.

    Args:
        after: What comes after the host in the line of an error.

    Raises:
        ConfigError: There is no such host, or several and no default.
    """
    configuration = config_file.load()
    try:
        return (configuration, *configuration.hosts_named(name))
    except ConfigError as error:
        if name is None and len(configuration.named) > 1 and not os.environ.get(HOST_VARIABLE):
            first = configuration.named[0]
            error.hint = f"clusterfn {command} {first}{after}; or add `default_host: {first}` to {configuration.title}"
        raise


def host_state(name: str | None, command: str) -> HostState:
    """Return the state of the host of that name, else of the one that a call would use; connects when it is asked."""
    return open_host(host(name, command)[1])


@contextlib.contextmanager
def host_hints(args: argparse.Namespace) -> Iterator[None]:
    """Say of an error about the host of `run` what to write on the command line."""
    command = args.parser.prog.partition(" ")[2]
    try:
        yield
    except ConfigError as error:
        try:
            hosts(args.host, command, " ...")
        except ConfigError as wrong:
            # The error is about the host if resolving the host again gives the same message.
            if wrong.message == error.message:
                error.hint = wrong.hint
        raise


def split_hosts(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into hosts of clusterfn.yml, for a list those of it, and all others; a single word is never a host.

    May raise ConfigError of clusterfn.yml.
    """
    config = config_file.load() if len(words) > 1 else config_file.Config({})
    named = [host for word in words if word in config.names for host in config.names_of(word)]
    return list(dict.fromkeys(named)), [word for word in words if word not in config.names]


def one_and_host(words: Sequence[str], what: str, command: str) -> tuple[str, str | None]:
    """Return the one word that is not a host, and the host that is given with it, if any.

    Raises:
        ConfigError: There are more words.

    Example:
        >>> one_and_host(["7f3a"], "ID", "attach")
        ('7f3a', None)
    """
    hosts, others = split_hosts(words)
    if len(others) > 1:
        near = did_you_mean(others[-1], config_file.load().names)
        hint = f"clusterfn {command} {what} [HOST]{near and f'; {others[-1]!r} is no host'}{near}"
        raise ConfigError(f"{command} takes one {what}, not {' and '.join(others)}", hint=hint)
    if not others or len(hosts) > 1:
        raise ConfigError(f"{command} takes one {what} and one HOST", hint=f"clusterfn {command} {what} [HOST]")
    return others[0], next(iter(hosts), None)


def function(text: str, words: Sequence[str] = ()) -> Callable[..., Any]:
    """Import the function that `file.py::name` names, decorated or not.

    Args:
        text: The name.
        words: What comes after it, for an error: perhaps a host comes before a command.

    Raises:
        ConfigError: No such file or function.
        FileFailed: The file itself fails.
    """
    file, separator, name = text.rpartition("::")
    if not separator:
        raise _nothing_to_run(text, words)
    if not file or not name:
        raise ConfigError(f"{text!r} names no function of a file", hint="write it as train.py::train")
    path = Path(file)
    if not path.is_file():
        others = [script.name for script in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = did_you_mean(path.name, others)
        raise ConfigError(f"there is no file {file}{near}", hint=f"the path is relative to {Path.cwd()}")
    config_file.running(path)
    # The file and the job may parse a command line, and the words of this one are for clusterfn.
    sys.argv = [file]
    return _member(imported(path), name, file)


def _nothing_to_run(text: str, words: Sequence[str]) -> ConfigError:
    """Return the error about words that `run` cannot run, the first of them perhaps a host."""
    on = [text] if set(text.split(",")).issubset(config_file.load().names) else []
    rest = list(words) if on else [text, *words]
    if not rest:
        hint = f"write it after the host: clusterfn run {text} -- COMMAND, or clusterfn run {text} train.py"
        return ConfigError(f"there is nothing to run on {text}", hint=hint)
    hint = f"for a command, write -- before it: {shlex.join(['clusterfn', 'run', *on])} -- {shlex.join(rest)}"
    more = "for a function, train.py::train; for a script, its path with a slash; for a module, -m before it"
    return ConfigError(f"{rest[0]!r} names no function of a file, and no script", hint=f"{hint}; {more}")


def imported(path: Path) -> ModuleType:
    """Import a file under the name by which its own folder (or package) would import it."""
    root, name = _place(path.resolve())
    if name == "clusterfn" or name in sys.modules:
        raise ConfigError(f"{path} has the name of a module that is already imported", hint="rename the file")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if "." in name:
        package: ModuleType = _run(path, lambda: importlib.import_module(name))
        return package
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", hint="give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Register the module before it runs, as `import` does. Dataclasses, for example, look up their module by its name.
    sys.modules[name] = module
    loader = spec.loader
    _run(path, lambda: loader.exec_module(module))
    return module


def _place(path: Path) -> tuple[Path, str]:
    """Return the folder for sys.path, and the dotted name below it."""
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _run(path: Path, work: Callable[[], Any]) -> Any:
    try:
        with import_time.importing(path):
            return work()
    except (Exception, SystemExit) as error:
        # Importing runs the user's code, which may raise anything.
        raise FileFailed(_complaint(path, error)) from error


def _complaint(path: Path, error: BaseException) -> str:
    """Format Python's traceback from the file's first frame until something of ours is called."""
    frames = itertools.dropwhile(
        lambda frame: frame.filename != str(path.resolve()), traceback.extract_tb(error.__traceback__)
    )
    own = list(itertools.takewhile(lambda frame: not frame.filename.startswith(_OURS), frames))
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)] if own else []
    last = traceback.format_exception_only(type(error), error)
    return "".join([f"{path} could not be imported.\n", *lines, *last]).rstrip()


def _member(module: ModuleType, name: str, file: str) -> Callable[..., Any]:
    member: Any = module
    for part in name.split("."):
        member = getattr(member, part, None)
    if member is None:
        functions = sorted(
            word
            for word, value in vars(module).items()
            if isinstance(value, (FunctionType, ClusterFunction)) and value.__module__ == module.__name__
        )
        hint = f"name one of its functions: {', '.join(functions)}"
        if not functions:
            hint = f"it has no functions; to run it as a script, leave out ::{name}"
        raise ConfigError(f"{file} has no function {name!r}{did_you_mean(name, functions)}", hint=hint)
    if not callable(member) or isinstance(member, type):
        raise ConfigError(f"{name!r} in {file} is not a function", hint="name a function of that file")
    chosen: Callable[..., Any] = member
    return chosen


def arguments(words: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Parse words of the command line as arguments: Python literals where they are such, else texts.

    Raises:
        ConfigError: The same keyword twice.

    Example:
        >>> arguments(["3", "cat", "lr=1e-3", "sizes=[1, 2]"])
        ((3, 'cat'), {'lr': 0.001, 'sizes': [1, 2]})
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for word in words:
        match = _KEYWORD.fullmatch(word)
        if match is None:
            positional.append(_value(word))
        elif match[1] in keywords:
            raise ConfigError(f"the argument {match[1]}= is given twice", hint="give it once")
        else:
            keywords[match[1]] = _value(match[2])
    return tuple(positional), keywords


def _value(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return word


def check_arguments(called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Reject arguments that the function cannot take, before anything is sent, with a ConfigError."""
    plain = getattr(called, "__wrapped__", called)
    signature = inspect.signature(plain)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(called, "__name__", "function")
        raise ConfigError(f"{name}: {error}", hint=f"it is {name}{signature}") from error
