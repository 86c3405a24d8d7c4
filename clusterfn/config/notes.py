"""The notes before a call: what its job would lack, or find otherwise, without an error; and how much clusterfn says.

This table is also the page docs/reference/notes.md. `notes: {hide: […]}` in clusterfn.yml names those that stay unsaid.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

_VERBOSE = "CLUSTERFN_DEBUG"
# The value of `quiet:` in the configuration that was loaded last.
is_quiet = False
# The ids that `notes: {hide: …}` has there.
hidden: tuple[str, ...] = ()


def is_verbose() -> bool:
    """Whether all details are wanted: by -v, or by $CLUSTERFN_DEBUG."""
    return os.environ.get(_VERBOSE, "") not in ("", "0")


def be_verbose() -> None:
    """Show all details from now on, in processes that this one starts, too."""
    os.environ[_VERBOSE] = "1"


class Note(NamedTuple):
    """A kind of note.

    Attributes:
        id: What clusterfn.yml calls it.
        when: The situation in which clusterfn says it.
        text: The sentence, with places for what was found.
        hint: What to do; "" for nothing.
        is_progress: Whether quiet mode hides it.
    """

    id: str
    when: str
    text: str
    hint: str = ""
    is_progress: bool = False


class CallNote(NamedTuple):
    """A note on one call: its id, what it is about, and the sentence. clusterfn says it once for each thing."""

    id: str
    about: str
    text: str


# In the order in which they are said.
NOTES = {
    note.id: note
    for note in (
        Note("sent-value", "a job or group among the arguments has its value on another host",
             "the value of {label} is sent from this machine to {host}, as {why}", "", True),
        Note("global", "the function sets a global variable", "{function} sets the global {name} in its job only",
             "no other call finds it, return it instead", True),
        Note("script-setting", "the script sets a seed, or a setting of a library, that the code of the call may use",
             "{call} in line {line} of your script has no effect in a job", "call it in the function, too", True),
        Note("shared-generator", "all items of a map get the same generator of random numbers",
             "each item of {function}.map() begins with the same state of {name}, and draws the same random numbers "
             "from it", "make it in the function, from a seed that is an argument", True),
        Note("argument", "an argument arrives as another object, such as a tensor of a GPU",
             "in the arguments {said}", "", True),
        Note("compiled", "an own module has a compiled extension", "{name} is not sent, because {file} is compiled for "
             "this machine", "the job imports it from its environment", True),
        Note("key", "a `Directory` among the arguments has a file that looks like a key or a password",
             "{path} looks like a key or a password, and is sent with its Directory"),
        Note("edited", "the file of an own module was edited after its import",
             "{name} has changed since this process imported it; the job gets the current file"),
        Note("module-value", "the program has set a variable of an own module, and the code of the call uses it",
             "{name} was changed on this machine, but not in the job, which imports {module} from its file",
             "set it inside the function"),
        Note("variable", "the program has set a variable of the environment that the code of the call uses",
             "{name} is set by this program, and its value is not sent to the job",
             "write env={{{name!r}: os.environ[{name!r}]}} in @cluster, or secrets=[{name!r}] if it is private"),
        Note("left-out", "a file of the project looks like a key, is a link to the outside, or is unreadable",
             "{names}: not sent, because {why}"),
        Note("ignored-code", "an import names code that git ignores",
             "{names}: sent although git ignores it, because it is code that is imported"),
        Note("ignored-data", "git ignores a folder of the project, or a file below one",
             "{names}: not sent, because git ignores it. A program that looks there finds nothing",
             "take it out of .gitignore, or pass a path of the host"),
    )
}  # fmt: skip


def found(id_: str, about: str = "", **facts: Any) -> CallNote:
    """Return a note with what was found; without `about` it is about its own sentence."""
    note = NOTES[id_]
    text = ": ".join(filter(None, (note.text, note.hint))).format(**facts)
    return CallNote(id_, about or text, text)
