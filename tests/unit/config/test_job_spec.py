"""What the spec.json of a job tells its host of the keys of clusterfn.yml."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterfn.config.spec import Limits
from tests.golden import samples


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("keep_days", 1.5, 1.5), ("queue_timeout_s", 60.0, 60.0),
        ("limits", Limits(gpus=2), Limits(gpus=2)._asdict()),
    ],
)  # fmt: skip
def test_a_key_of_the_host_reaches_the_spec(key: str, value: Any, told: object) -> None:
    host = samples.BARE._replace(**{key: value})

    assert json.loads(samples.job(host).to_json())[key] == told
