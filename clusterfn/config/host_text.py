"""What a host wrote, on its way into code here: JSON, a module's name, a word of a shell command.

A host that is not trusted chooses each of them. So they are checked where they are read, by these functions alone, and
not where they are used: in a pattern, a path, an import, or a command that a person copies into a shell.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator

from clusterfn.bridge.supervisor.text import in_one_line, shortened
from clusterfn.errors import HostError

_LONGEST_NAME = 200
_LONGEST_WORD = 500
_NAME = re.compile(r"[^\W\d]\w*(?:[.-]\w+)*")  # of a module; with hyphens, of a project


@contextlib.contextmanager
def reading(host: str, what: str) -> Iterator[None]:
    """Read what a host wrote, which may be no JSON, or lack what it needs.

    Args:
        what: It, for the message: "its list of jobs".

    Raises:
        HostError: The block could not make sense of it.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise HostError(
            f"{host} sent {what} in a form that clusterfn cannot read", host=host,
            evidence=[in_one_line(shortened(why, _LONGEST_WORD))],
            hint=f"check whether the files of clusterfn on {host} are damaged, or written by another version",
        ) from error  # fmt: skip


def module_name(told: object) -> str:
    """Return the name of a module or a project if it is one; "" otherwise: it goes into patterns, paths and commands.

    Example:
        >>> module_name("a.b"), module_name("**/x"), module_name("x; rm -rf ~")
        ('a.b', '', '')
    """
    is_one = type(told) is str and len(told) <= _LONGEST_NAME and _NAME.fullmatch(told) is not None
    return str(told) if is_one else ""


def shell_word(told: object) -> str:
    """Return a text as one word of a shell command that a person may copy: on one line, quoted if need be.

    Example:
        >>> shell_word("/opt/bin/python"), shell_word("/x; curl evil")
        ('/opt/bin/python', "'/x; curl evil'")
    """
    return shlex.quote(shortened(in_one_line(str(told)), _LONGEST_WORD))
