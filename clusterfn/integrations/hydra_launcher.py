"""A launcher of Hydra: `--multirun` sends all of its runs as one group to a host.

Each run has the job's folder there as its output folder. When it has ended, its files come to the folder in which Hydra
would have run it here, and what the launcher returns and what Hydra has written names that folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf, open_dict, read_write

from clusterfn.calls import mapping
from clusterfn.calls.group import JobGroup
from clusterfn.config.options import CallOptions, Options, changed
from clusterfn.errors import MapError
from clusterfn.hosts import remote_files


class ClusterfnLauncher(Launcher):  # type: ignore[misc]  # Hydra has no types
    """Run a multirun on a host; below `hydra.launcher` are `max_parallel` and the options of `cluster`."""

    def __init__(self, max_parallel: int = mapping.AT_ONCE, **options: Any) -> None:
        options_set = {name: value for name, value in options.items() if value is not None}
        self._how = mapping.parse_map_options(max_parallel, "auto")
        self._options: Options = changed(Options(name="hydra"), options_set)

    def setup(self, *, hydra_context: Any, task_function: Callable[[Any], Any], config: Any) -> None:
        """Take what Hydra knows of the program."""
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        """Run a job for each list of overrides; return what each gave, in order. Raise only before any is sent."""
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        numbered = list(enumerate(job_overrides, initial_job_idx))
        configs, places = zip(*[self._of_run(number, overrides) for number, overrides in numbered])
        state = Singleton.get_state()
        calls = ([self._task] * len(configs), [self._context] * len(configs), configs, [state] * len(configs))
        labels = [" ".join(overrides) for overrides in job_overrides]
        group = mapping.run(_run, calls, self._options, self._how, given_labels=labels)
        try:
            values = group.results()
        except MapError:
            # No run returned a value.
            values = [group.failed[index] for index in range(len(configs))]
        for index, place in enumerate(places):
            _bring(group, index, place)
        returned = [
            value if isinstance(value, JobReturn) else _failed(config, overrides, value)
            for value, config, overrides in zip(values, configs, job_overrides)
        ]
        for returned_job, place in zip(returned, places):
            place.write_into(returned_job.hydra_cfg)
            returned_job.working_dir = str(place.folder)
        return returned

    def _of_run(self, number: int, overrides: Sequence[str]) -> tuple[Any, _Place]:
        """Return the configuration of a run on the host, and where its files belong here."""
        config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = f"{config.hydra.job.name}_{number}"
            config.hydra.job.num = number
        HydraConfig.instance().set_config(config)
        place = _Place(str(config.hydra.sweep.dir), str(OmegaConf.select(config, "hydra.sweep.subdir")))
        with read_write(config.hydra), open_dict(config):
            config.hydra.sweep.dir, config.hydra.sweep.subdir = ".", "."
        return config, place


class _Place(NamedTuple):
    """Where the files of a run belong on this machine, as Hydra names it."""

    sweep: str
    run: str

    @property
    def folder(self) -> Path:
        return Path(self.sweep, self.run)

    def write_into(self, config: Any) -> None:
        """Replace the host's folders in the `hydra` part of a configuration."""
        with read_write(config), read_write(config.hydra), open_dict(config.hydra):
            config.hydra.sweep.dir, config.hydra.sweep.subdir = self.sweep, self.run
            config.hydra.runtime.output_dir = str(self.folder.absolute())


def _run(task: Callable[[Any], Any], context: Any, config: Any, state: Any) -> Any:
    """Do one run, in the job."""
    setup_globals()
    # The process of the job starts without the global state of Hydra.
    Singleton.set_state(state)
    HydraConfig.instance().set_config(config)
    return run_job(
        hydra_context=context,
        config=config,
        task_function=task,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


# The function is sent by value, so the job need not import modules that only the launcher uses.
_run.__module__ = "__main__"


def _bring(group: JobGroup[Any, Any], index: int, place: _Place) -> None:
    """Fetch what a run has left, if anything; Hydra's own file about it names the folder here."""
    place.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(remote_files.NothingMatches):
        for path in group.download(index, "**", place.folder):
            if path.name == "hydra.yaml":
                config = OmegaConf.load(path)
                if OmegaConf.select(config, "hydra.runtime.output_dir") is not None:
                    place.write_into(config)
                    OmegaConf.save(config, path)


def _failed(config: Any, overrides: Sequence[str], error: BaseException) -> Any:
    """Return what Hydra expects of a run that gave nothing: its `return_value` raises the error."""
    failed = JobReturn(overrides=list(overrides), hydra_cfg=config, status=JobStatus.FAILED)
    failed.return_value = error
    return failed


_NODE = {
    "_target_": "hydra_plugins.clusterfn_launcher.ClusterfnLauncher",
    # The options are plain lists and dicts, as those of a decorator.
    "_convert_": "all",
    "max_parallel": mapping.AT_ONCE,
    **dict.fromkeys(CallOptions.__annotations__),
}
ConfigStore.instance().store(group="hydra/launcher", name="clusterfn", provider="clusterfn", node=_NODE)
