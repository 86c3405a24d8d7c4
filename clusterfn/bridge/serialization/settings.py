"""The settings of libraries by which a script changes what its code computes or shows: one table.

Those in `CARRIED` are read where the call was made, if they differ from the default, and set in its job. No library is
imported for this: a job sets what belongs to one once its function imports that. Those in `NAMED` cannot be sent.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional, Union


class Setting(NamedTuple):
    """A setting of a module.

    Attributes:
        default: What it is in a fresh process.
        read: Returns it, as JSON has it; a name is that of the function that does; None: it is an attribute.
        write: Sets it; None: its function takes the value.
    """

    default: Any
    read: Union[str, Callable[[Any], Any], None] = None
    write: Optional[Callable[[Any, Any], object]] = None


def _dtype(torch: Any) -> str:
    return str(torch.get_default_dtype()).partition(".")[2]


def _deterministic(torch: Any) -> list[bool]:
    return [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()]


def _set_decimal(decimal: Any, both: list[Any]) -> None:
    context = decimal.getcontext()
    context.prec, context.rounding = both


def _filters(warnings: Any) -> list[list[str]]:
    """Return the filters for all messages of a class of Python's own; the job has those of its start already."""
    usual = [] if sys.flags.dev_mode else [["ignore", name] for name in _IGNORED]
    found = [
        [action, category.__name__]
        for action, message, category, module, line in warnings.filters
        if not (message or module or line) and action != "error" and category.__module__ == "builtins"
    ]
    return [pair for pair in found if pair not in usual]


_IGNORED = ("DeprecationWarning", "PendingDeprecationWarning", "ImportWarning", "ResourceWarning")


def _set_filters(warnings: Any, filters: list[list[str]]) -> None:
    for action, name in reversed(filters):
        warnings.simplefilter(action, vars(sys.modules["builtins"])[name])


def _options(pandas: Any) -> dict[str, Any]:
    """Return the changed options, past `get_option`, which warns of deprecated ones."""
    config = sys.modules["pandas._config.config"]
    usual = {name: option.defval for name, option in config._registered_options.items()}
    here = {name: functools.reduce(operator.getitem, name.split("."), config._global_config) for name in usual}
    return {name: value for name, value in here.items() if type(value) in _PLAIN and value != usual[name]}


_PLAIN = (bool, int, float, str, type(None))


def _set_options(pandas: Any, options: dict[str, Any]) -> None:
    for name, value in options.items():
        pandas.set_option(name, value)


def _some(function: str, **defaults: Any) -> Setting:
    """Return a setting that one function takes as keywords, and another one returns as a dict."""

    def read(module: Any) -> dict[str, Any]:
        kept = getattr(module, "get" + function[3:].replace("seterr", "err"))()
        return {name: kept[name] for name in defaults if name in kept and kept[name] != defaults[name]}

    return Setting({}, read, lambda module, value: getattr(module, function)(**value))


def _of_jax(name: str, default: Any) -> Setting:
    return Setting(default, None, lambda jax, value: jax.config.update(name, value))


# The keys are a module, and what the script sets of it.
CARRIED: Mapping[str, Setting] = {
    "sys:setrecursionlimit": Setting(1000, "getrecursionlimit"),
    "sys:set_int_max_str_digits": Setting(4300, "get_int_max_str_digits"),
    "csv:field_size_limit": Setting(131072, "field_size_limit"),
    "decimal:getcontext": Setting(
        [28, "ROUND_HALF_EVEN"],
        lambda decimal: [decimal.getcontext().prec, decimal.getcontext().rounding],
        _set_decimal,
    ),
    "warnings:filterwarnings": Setting([], _filters, _set_filters),
    "numpy:seterr": Setting(
        {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
        "geterr",
        lambda numpy, modes: numpy.seterr(**modes),
    ),
    "numpy:set_printoptions": _some(
        "set_printoptions",
        edgeitems=3,
        threshold=1000,
        floatmode="maxprec",
        precision=8,
        suppress=False,
        linewidth=75,
        nanstr="nan",
        infstr="inf",
        sign="-",
    ),
    "pandas:set_option": Setting({}, _options, _set_options),
    "sklearn:set_config": _some(
        "set_config", assume_finite=False, enable_metadata_routing=False, transform_output="default"
    ),
    "PIL.Image:MAX_IMAGE_PIXELS": Setting(89478485),
    "PIL.ImageFile:LOAD_TRUNCATED_IMAGES": Setting(False),
    "torch:set_default_dtype": Setting(
        "float32", _dtype, lambda torch, name: torch.set_default_dtype(getattr(torch, name))
    ),
    "torch:use_deterministic_algorithms": Setting(
        [False, False],
        _deterministic,
        lambda torch, both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
    ),
    "torch:set_float32_matmul_precision": Setting("highest", "get_float32_matmul_precision"),
    "torch:set_grad_enabled": Setting(True, "is_grad_enabled"),
    "torch:autograd.set_detect_anomaly": Setting(False, "is_anomaly_enabled"),
    **{
        f"torch:backends.cudnn.{name}": Setting(name in ("allow_tf32", "enabled"))
        for name in ("allow_tf32", "benchmark", "deterministic", "enabled")
    },
    **{
        f"torch:backends.cuda.matmul.{name}": Setting(name != "allow_tf32")
        for name in ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    },
    **{
        f"torch:backends.cuda.enable_{name}_sdp": Setting(True, f"backends.cuda.{name}_sdp_enabled")
        for name in ("flash", "math", "mem_efficient")
    },
    **{
        f"jax:config.{name}": _of_jax(name, default)
        for name, default in (
            ("jax_enable_x64", False),
            ("jax_default_matmul_precision", None),
            ("jax_debug_nans", False),
            ("jax_disable_jit", False),
            ("jax_numpy_rank_promotion", "allow"),
            ("jax_threefry_partitionable", True),
        )
    },
}
# Maps a function, or its last name where several libraries have it, to the packages that it sets; the code that is
# sent must use one of these. An empty set stands for any code.
_SEEDED = frozenset(["numpy", "random", "torch"])
NAMED: Mapping[str, frozenset[str]] = {
    "numpy.random.seed": frozenset(["numpy"]),
    "random.seed": frozenset(["random"]),
    "seed_everything": _SEEDED,
    "set_random_seed": frozenset([*_SEEDED, "keras", "tensorflow"]),
    "set_seed": _SEEDED,
    "torch.manual_seed": frozenset(["torch"]),
    "torch.set_default_device": frozenset(["torch"]),
    "set_floatx": frozenset(["keras", "tensorflow"]),
    "set_global_policy": frozenset(["keras", "tensorflow"]),
    "locale.setlocale": frozenset(["locale"]),
    "warnings.filterwarnings('error'": frozenset(),
    "warnings.simplefilter('error'": frozenset(),
}


def current() -> dict[str, Any]:
    """Return what differs from its default in this process, of the libraries that it has imported."""
    there = {name: setting for name, setting in CARRIED.items() if name.partition(":")[0] in sys.modules}
    values = {name: _value(name, setting) for name, setting in there.items()}
    return {name: value for name, value in values.items() if value != there[name].default}


def _value(name: str, setting: Setting) -> Any:
    home, _, path = name.partition(":")
    try:
        module = sys.modules[home]
        if callable(setting.read):
            return setting.read(module)
        value = operator.attrgetter(setting.read or path)(module)
        value = value() if setting.read else value
        return value if type(value) in _PLAIN or type(value) is dict else setting.default
    except Exception:  # noqa: BLE001 - a library's own code, in another version
        return setting.default


# What was set here for a call, with the values before: the next call of an actor may come without it.
_before: dict[str, Any] = {}


def apply(found: Mapping[str, Any]) -> None:
    """Set these here, and no others: each at once if its module is imported, else as soon as it is."""
    for name in _before.keys() - found:
        _set(name, _before[name])
        del _before[name]
    for finder in [finder for finder in sys.meta_path if isinstance(finder, _AtImport)]:
        sys.meta_path.remove(finder)
    later: dict[str, dict[str, Any]] = {}
    for name, value in found.items():
        home = name.partition(":")[0]
        if home in sys.modules:
            _set(name, value)
        else:
            later.setdefault(home, {})[name] = value
    if later:
        sys.meta_path.insert(0, _AtImport(later))


def _set(name: str, value: Any) -> None:
    home, _, path = name.partition(":")
    try:
        module = sys.modules[home]
        setting = CARRIED[name]
        _before.setdefault(name, _value(name, setting))
        owner, _, last = path.rpartition(".")
        if setting.write is not None:
            setting.write(module, value)
        elif setting.read is None:
            setattr(operator.attrgetter(owner)(module) if owner else module, last, value)
        else:
            operator.attrgetter(path)(module)(value)
    except Exception as error:  # noqa: BLE001 - a library's own code, in another version
        sys.stderr.write(f"clusterfn: {home}.{path} of your script has no effect in this job: {error}\n")


class _AtImport:
    """Finds modules as usual, and lets what was set of one be set once it is loaded."""

    def __init__(self, later: dict[str, dict[str, Any]]) -> None:
        self._later = later

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's own spec; None for a module of which nothing was set."""
        if name not in self._later:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec: Any = next((found for finder in finders if (found := finder.find_spec(name, path, target))), None)
        # The loader of a module that is built in is a class, which serves all of them.
        if spec is None or spec.loader is None or isinstance(spec.loader, type):
            return spec
        load = spec.loader.exec_module

        def load_and_set(module: Any) -> None:
            load(module)
            for key, value in self._later.pop(name, {}).items():
                _set(key, value)

        spec.loader.exec_module = load_and_set
        return spec
