"""Hydra's tests of launchers, as its own plugins use them."""

import os
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import BatchedSweeperTestSuite, IntegrationTestSuite, LauncherTestSuite
from pytest import fixture, mark

Plugins.instance()  # imports the launcher, which registers itself: each test restores what was there before it


@fixture(autouse=True)
def own_modules_are_found(monkeypatch):
    """The programs of these tests are in folders of their own."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@mark.parametrize("launcher_name, overrides", [("clusterfn", [])])
class TestLauncher(LauncherTestSuite):
    pass


@mark.parametrize(
    "launcher_name, overrides",
    [("clusterfn", ["hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2"])],
)
class TestLauncherInBatches(BatchedSweeperTestSuite):
    pass


@mark.parametrize("task_launcher_cfg, extra_flags", [({}, ["-m", "hydra/launcher=clusterfn"])])
class TestProgram(IntegrationTestSuite):
    pass
