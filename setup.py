"""Makes the description for a package index from README.md; all other metadata is in setup.cfg.

On an index a relative link leads nowhere. Links to files of the sources become absolute if setup.cfg has a `Source`
among its `project_urls`, and plain text otherwise.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parent
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)|<img\b[^>]*>")
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")


def source_url() -> str:
    """Return where the sources of this version can be read, with a slash at the end; "" if setup.cfg does not say."""
    known = configparser.ConfigParser()
    known.read(ROOT / "setup.cfg", encoding="utf-8")
    urls = known.get("metadata", "project_urls", fallback="").splitlines()
    found = [url.strip() for name, _, url in (line.partition("=") for line in urls) if name.strip() == "Source"]
    return f"{found[0].rstrip('/')}/blob/main/" if found else ""


def description(readme: str, source: str) -> str:
    """Return the text of README.md with links that work on an index; code blocks stay as they are."""

    def image(found: re.Match[str]) -> str:
        if "://" in found[0]:
            return found[0]
        return f"![{found[1]}]({source}{found[2]}?raw=true)" if source and found[2] else ""

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        return f"[{text}]({source}{target})" if source and not target.startswith("#") else text

    parts = re.split(r"(^```.*?^```$)", readme, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [_LINK.sub(link, _IMAGE.sub(image, part)) for part in parts[::2]]
    where = (
        "" if source else "\nThe documents that this page names are in the folder `docs/` of the source distribution.\n"
    )
    return "".join(parts).rstrip("\n") + "\n" + where


if __name__ == "__main__":
    from setuptools import setup

    setup(
        long_description=description((ROOT / "README.md").read_text(encoding="utf-8"), source_url()),
        long_description_content_type="text/markdown",
    )
