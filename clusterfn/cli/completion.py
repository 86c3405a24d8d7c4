"""`clusterfn completion bash`: what a shell needs to complete commands, options, hosts and job ids; made by shtab."""

from __future__ import annotations

import argparse

from clusterfn.calls import history
from clusterfn.cli.parser import make_parser
from clusterfn.config import config_file
from clusterfn.errors import ConfigError

_MOST_IDS = 50
# Maps the metavar of an argument to the kind of words that complete it.
_WORDS = {"HOST": "hosts", "ID": "jobs", "FILE HOST": "hosts"}
_BASH = """\
_clusterfn_%(what)s() {
  compgen -W "$(clusterfn completion --words %(what)s 2>/dev/null)" -- "$1"
}
"""
_ZSH = """\
_clusterfn_%(what)s() {
  compadd -- ${(f)"$(clusterfn completion --words %(what)s 2>/dev/null)"}
}
"""


def completion(args: argparse.Namespace) -> int:
    """Print the completion for a shell; with --words the hosts, or jobs that were sent from here last and the hosts."""
    if args.words:
        # Completion runs at each press of a key, so it must not ask a host.
        ids = history.newest_ids(_MOST_IDS) if args.words == "jobs" else []
        print("\n".join([*ids, *config_file.load().names]))
        return 0
    if args.shell is None:
        raise ConfigError("completion needs the name of a shell", hint="clusterfn completion bash, or zsh")
    print(script_for(args.shell))
    return 0


def script_for(shell: str) -> str:
    """Return the completion of the whole command line for bash or zsh; raise ConfigError if shtab is not installed."""
    try:
        # shtab is an optional dependency, the extra `completion`.
        import shtab
    except ModuleNotFoundError as error:
        hint = "pip install '.[completion]' in your clone of clusterfn"
        raise ConfigError("completion needs shtab", hint=hint) from error
    parser = make_parser()
    _complete(parser, {what: {"bash": f"_clusterfn_{what}", "zsh": f"_clusterfn_{what}"} for what in _WORDS.values()})
    functions = {"bash": _BASH, "zsh": _ZSH}[shell]
    preamble = "\n".join(functions % {"what": what} for what in sorted({*_WORDS.values()}))
    return str(shtab.complete(parser, shell, root_prefix="clusterfn", preamble=preamble))


def _complete(parser: argparse.ArgumentParser, completers: dict[str, dict[str, str]]) -> None:
    """Say of each argument below this parser which function completes it, as shtab reads it."""
    for action in parser._actions:
        what = _WORDS.get(str(action.metavar))
        if what is not None:
            action.complete = completers[what]  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for command in {id(subparser): subparser for subparser in action.choices.values()}.values():
                _complete(command, completers)
