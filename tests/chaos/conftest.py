"""The hosts of the chaos tests, and clients in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.chaos.inprocess import Here
    from tests.chaos.lanes import Lane
    from tests.chaos.world import World
    from tests.lab import Lab


@pytest.fixture(scope="session")
def world(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Hosts with a root of this session's own."""
    from tests.chaos.world import World

    world = World(lab, tmp_path_factory.mktemp("chaos"))
    world.build()
    yield world
    world.remove()


@pytest.fixture
def new_lane(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Lane]]:
    """Make clients; those that live are ended after the test."""
    from tests.chaos.lanes import Lane

    state, made = tmp_path_factory.mktemp("state"), []

    def make() -> Lane:
        made.append(Lane(world.config, state))
        return made[-1]

    yield make
    for lane in made:
        lane.close()


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> Here:
    """A client in this process."""
    from tests.chaos.inprocess import Here

    monkeypatch.setenv("CLUSTERFN_CONFIG", str(world.config))
    return Here(world)
