"""Name files in the tracebacks of a host as on this machine."""

from __future__ import annotations

import re
import sys

from clusterfn.bridge import layout

# Modules that were sent are in a folder named by a hash of their content, which says nothing to a reader.
_SENT_SOURCES = re.compile(rf'File "[^"]*/{layout.SOURCES}/[0-9a-f]{{64}}/')
_NAMED_FILE = re.compile(r'File "([^"\n]+)"(?=, line \d)')


def name_files_as_here(text: str) -> str:
    """Return `text` with the user's own modules and notebook cells named as on this machine."""
    return _NAMED_FILE.sub(_as_cell, _SENT_SOURCES.sub('File "', text))


def _as_cell(named: re.Match[str]) -> str:
    """Return `Cell In[6]`, as IPython's tracebacks name the file of a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    label, number = (name_of(named[1]) if name_of else None) or ("", "")
    return f"{label} {number}" if number else named[0]
