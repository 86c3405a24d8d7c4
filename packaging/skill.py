"""`python packaging/skill.py`: write SKILL.md, which an AI assistant reads, from docs/how-to/assistants.md."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, SKILL = ROOT / "docs/how-to/assistants.md", ROOT / "SKILL.md"
HEAD = """\
---
name: clusterfn
description: >-
  Run Python functions, scripts and commands on GPU servers and SLURM clusters with clusterfn, follow the jobs and read
  their failures. Use it where the project has a clusterfn.yml, or the user names a host.
---

# clusterfn

"""


def skill(page: str) -> str:
    """Return the page from its first section on, with the head that such a file needs."""
    return HEAD + page[page.index("## ") :]


if __name__ == "__main__":
    SKILL.write_text(skill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
