"""Text for a terminal: JSON, a little colour, and nothing that a remote text could do to the terminal."""

from __future__ import annotations

import json
import os
import re
from typing import Any, TextIO

from clusterfn.display import console

# Control characters, and those that hide or reorder text. A terminal would obey them.
_OBEYED = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_COLOURS = {"green": "32", "red": "31", "yellow": "33", "dim": "2"}


def as_json(value: Any) -> str:
    """Words in their own letters; in JSON's strings, only what a terminal obeys must also be escaped."""
    return _OBEYED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(value, ensure_ascii=False))


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """`text` in a colour if the stream is a terminal and the user has not set NO_COLOR."""
    if os.environ.get("NO_COLOR") or not console.is_terminal(stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"
