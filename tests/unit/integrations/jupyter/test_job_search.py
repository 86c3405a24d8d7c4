"""What a kernel asks for before its job is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.config.config_file import CallHost
from clusterfn.config.options import Options
from clusterfn.errors import Unsatisfiable
from clusterfn.integrations.jupyter import kernel_job


@pytest.mark.parametrize(("name", "shown"), [(None, "kernel"), ("mine", "mine")])
def test_a_kernel_is_prepared_under_a_name_that_users_know(
    name: str | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str | None] = []

    def unsatisfiable(chosen: CallHost) -> None:
        named.append(chosen.options.name)
        raise Unsatisfiable("no such environment")

    monkeypatch.delenv("CLUSTERFN_CONFIG")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernel_job, "prepare_held", unsatisfiable)

    with pytest.raises(Unsatisfiable):
        kernel_job.JobSearch("key", Options(host="local", name=name), 60.0).run()

    assert named == [shown]
