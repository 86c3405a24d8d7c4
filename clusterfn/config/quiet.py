"""How much clusterfn says. Apart from the reader of clusterfn.yml, because whatever prints a sentence asks."""

import os

_VERBOSE = "CLUSTERFN_DEBUG"
# The value of `quiet:` in the configuration that was loaded last.
in_file = False
# The ids that `notes: {hide: …}` has there.
hidden_notes: tuple[str, ...] = ()


def is_verbose() -> bool:
    """Whether all details are wanted: by -v, or by $CLUSTERFN_DEBUG."""
    return os.environ.get(_VERBOSE, "") not in ("", "0")


def be_verbose() -> None:
    """Show all details from now on, in processes that this one starts, too."""
    os.environ[_VERBOSE] = "1"
