"""An agent in this process, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fakes.agent_client import Client


@pytest.fixture
def client() -> Iterator[Client]:
    from tests.fakes.agent_client import Client  # agents run on Unix, and some tests here anywhere

    made = Client()
    yield made
    made.end()
