"""What a call may ask of a host without a scheduler: what it has, within the limits of clusterfn.yml."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.config.spec import Host, Limits, Resources
from clusterfn.errors import Unsatisfiable
from clusterfn.hosts.host_capacity import HostCapacity

BOX = Host("box", "box", "bare", "clusterfn.yml:2")


def capacity(limits: Limits) -> HostCapacity:
    """That of a machine with 4 cores."""
    facts = SimpleNamespace(cpus=4, memory_bytes=8 << 30, lacking=())
    rules, connection = SimpleNamespace(has_nodes=False), SimpleNamespace(facts=facts)
    box: Any = SimpleNamespace(
        settings=BOX._replace(limits=limits), scheduler=rules, scheduler_rules=rules, connection=connection
    )
    return HostCapacity(box)


@pytest.mark.parametrize(("cores", "limit"), [(4, None), (2, 2), (8, 8)], ids=["all", "the limit", "more than it has"])
def test_the_cores_are_those_of_the_machine_or_of_the_limit(cores: int, limit: int | None) -> None:
    machine = capacity(Limits(cores=limit))

    machine.enough(Resources(cores=cores))
    with pytest.raises(Unsatisfiable, match=rf"cores={cores + 1} is more than .*: {cores}\n"):
        machine.enough(Resources(cores=cores + 1))
