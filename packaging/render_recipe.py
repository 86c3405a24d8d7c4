"""`python packaging/render_recipe.py SDIST`: write the conda-forge recipe with the SHA-256 of that sdist beside it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

RECIPE = Path(__file__).parent / "conda-forge" / "recipe" / "recipe.yaml"
PLACE = "SHA256-OF-THE-SDIST"


def render_recipe(sdist: Path) -> Path:
    """Return the file that was written: recipe/recipe.yaml in the folder of the sdist."""
    text = RECIPE.read_text(encoding="utf-8")
    written = sdist.parent / "recipe" / "recipe.yaml"
    written.parent.mkdir(exist_ok=True)
    written.write_text(text.replace(PLACE, hashlib.sha256(sdist.read_bytes()).hexdigest()), encoding="utf-8")
    return written


if __name__ == "__main__":
    sys.stdout.write(f"{render_recipe(Path(sys.argv[1]))}\n")
