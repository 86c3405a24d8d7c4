"""What tests of values share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import venv_with_older_versions


@pytest.fixture
def older(lab: Any) -> str:
    """The interpreter of an environment with numpy 1, attrs 23 and pydantic 2.9."""
    return str(venv_with_older_versions(lab) / "bin" / "python")
