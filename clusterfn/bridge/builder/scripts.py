"""Scripts that start an entry point: `name = module:attribute`. Pure."""

import configparser
import re

from .failure import Failed
from .prefix import shebang

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_POINT = re.compile(r"\s*([^\s=/]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)\s*(\[.*\])?\s*\Z")
_SCRIPT = """import sys

from {module} import {first}

if __name__ == "__main__":
    sys.exit({attribute}())
"""


def script(line: str, python: str) -> "Optional[tuple[str, bytes]]":
    """The name of the script and its text; None for an entry point without an attribute."""
    match = _POINT.match(line)
    if match is None:
        if ":" in line:
            raise Failed("%r is no entry point" % line, stage="link")
        return None
    name, module, attribute = match.group(1), match.group(2), match.group(3)
    text = _SCRIPT.format(module=module, attribute=attribute, first=attribute.split(".")[0])
    return name, shebang(python) + text.encode()


def of_wheel(text: str) -> "list[str]":
    """The lines of a wheel's entry_points.txt that are commands."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    sections = [section for section in ("console_scripts", "gui_scripts") if parser.has_section(section)]
    return ["%s = %s" % pair for section in sections for pair in parser.items(section)]
