"""What a call asks for: its own words, completed by its host's defaults, and refused where they contradict each other.

Asks no host.
"""

from __future__ import annotations

from dataclasses import replace

from clusterfn.config.options import Options
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ConfigError
from clusterfn.scheduler import scheduler_for


def resources_of(options: Options, host: Host) -> Resources:
    """What the decorator asked for, completed by the host's defaults.

    Raises:
        ConfigError: A type or size of cards without cards, or such as the host's scheduler cannot be asked for; nodes
            of a host that has none.
        Unsatisfiable: clusterfn.yml says that no card there is as large.
    """
    defaults = host.defaults
    gpus = defaults.gpus if options.gpus is None else options.gpus
    asked = Resources(
        cores=options.cores or defaults.cores,
        memory_bytes=options.memory_bytes or defaults.memory_bytes,
        gpus=gpus,
        time_s=options.time_s or defaults.time_s,
        nodes=options.nodes or 1,
        allow_cpu=bool(options.allow_cpu),
    )
    if gpus:
        asked = replace(
            asked,
            gpu_memory_bytes=options.gpu_memory_bytes or defaults.gpu_memory_bytes,
            gpu_type=options.gpu_type or defaults.gpu_type,
        )
    else:
        _refuse_cards_of_none(options)
    return scheduler_for(host).resolve_resources(asked)


def _refuse_cards_of_none(options: Options) -> None:
    """A word about cards in a call that gets none."""
    for word, given in (("gpu_type", options.gpu_type), ("gpu_memory", options.gpu_memory_bytes)):
        if given is not None:
            message = f"{word}= says which cards, and the call asks for none"
            raise ConfigError(message, hint=f"add gpus=1, or remove {word}=")
