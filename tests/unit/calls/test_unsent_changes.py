"""What a script has changed in the user's own modules since their import is named: a job imports the files again."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from clusterfn.packing import payload
from clusterfn.packing.dependencies import Place
from tests.unit.calls.own_project import write

PLACE = Place("here", "/root")
CONF = "LR = 0.1\nNAMES = ['a']\nSETTINGS = {'lr': 0.1, 'adam': {'beta': 1}}\nMODEL = None\nTOKEN = ''\n"
HELPERS = """
import conf

REGISTRY = {}

class Model:
    SIZE = 64

    def build(self):
        return self.SIZE

class Trainer:
    def fit(self):
        return conf.LR

def register(function):
    REGISTRY[function.__name__] = function
    return function

def known(name):
    return REGISTRY[name]

def load():
    return 1

def step():
    return conf.LR, load()

def configured(settings):
    return settings.LR

def names():
    return conf.NAMES

def use(rate):
    conf.LR = rate
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder of the user's own modules, which are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # An import then writes a byte code file, which has the time of the source that was imported.
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def script(project: Path, monkeypatch, text: str, **modules: str) -> Any:
    """Run a script beside these modules; return its `f`."""
    write(project, **{"conf": CONF, "helpers": HELPERS, **modules})
    importlib.invalidate_caches()
    path = project / "script.py"
    path.write_text(text)
    main: Any = types.ModuleType("__main__")
    main.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(text, str(path), "exec"), vars(main))
    return main.f


def changed(function: Any, *args: Any) -> dict[str, str]:
    return dict(payload.pack(function, args, {}, place=PLACE).changed_here)


def returns(expression: str) -> str:
    return f"def f():\n    return {expression}\n"


READS_LR = returns("conf.LR")
CHANGED = {
    "a number": ("conf.LR", "import conf\nconf.LR = 0.5\n" + READS_LR),
    "read in a lambda": ("conf.LR", "import conf\nconf.LR = 'fast'\n" + returns("lambda: conf.LR")),
    "by setattr": ("conf.LR", "import conf\nsetattr(conf, 'LR', 1)\n" + READS_LR),
    "by vars": ("conf.LR", "import conf\nvars(conf).update(LR=3)\n" + READS_LR),
    "imported inside": ("conf.LR", "import conf as c\nc.LR = 2\ndef f():\n    import conf as d\n    return d.LR\n"),
    "taken inside": ("conf.LR", "import conf\nconf.LR = 2\ndef f():\n    from conf import MODEL, LR\n    return LR\n"),
    "by getattr": ("conf.LR", "import conf\nconf.LR = 2\n" + returns("getattr(conf, 'LR', 0)")),
    "in a helper": ("conf.LR", "import conf, helpers\nconf.LR = 2\n" + returns("helpers.step()")),
    "by a helper itself": ("conf.LR", "import conf\nfrom helpers import step as f\nconf.LR = 2\n"),
    "passed on": ("conf.LR", "import conf, helpers\nconf.LR = 2\n" + returns("helpers.configured(conf)")),
    "in a method": ("conf.LR", "import conf, helpers\nconf.LR = 2\n" + returns("helpers.Trainer().fit()")),
    "an object": ("conf.MODEL", "import argparse, conf\nconf.MODEL = argparse.Namespace()\n" + returns("conf.MODEL")),
    "a new name": ("conf.ADDED", "import conf\nconf.ADDED = 1\n" + returns("conf.ADDED")),
    "appended": ("conf.NAMES", "import conf\nconf.NAMES.append('b')\n" + returns("conf.NAMES")),
    "another list": ("conf.NAMES", "import conf\nconf.NAMES = []\n" + returns("conf.NAMES")),
    "an item": ("conf.SETTINGS", "import conf\nconf.SETTINGS['lr'] = 1\n" + returns("conf.SETTINGS['lr']")),
    "an item, copied": (
        "conf.SETTINGS",
        "import conf\nconf.SETTINGS['lr'] = 1\ndef f(to=conf):\n    done = {}\n    done['lr'] = conf.SETTINGS['lr']\n",
    ),
    "a deep item": ("conf.SETTINGS", "import conf\nconf.SETTINGS['adam']['beta'] = 2\n" + returns("conf.SETTINGS")),
    "taken by the script": (
        "conf.NAMES", "import helpers\nfrom conf import NAMES\nNAMES.append(1)\n" + returns("helpers.names()")
    ),
    "a registry": (
        "helpers.REGISTRY", "import helpers\n@helpers.register\ndef mine(): pass\n" + returns("helpers.known('mine')")
    ),
    "a function": ("helpers.load", "import helpers\nhelpers.load = lambda: 2\n" + returns("helpers.step()")),
    "of a class": (
        "helpers.Model.SIZE", "import helpers\nhelpers.Model.SIZE = 128\n" + returns("helpers.Model().build()")
    ),
    "in main()": ("conf.LR", "import conf\ndef main():\n    conf.LR = 3\nmain()\n" + READS_LR),
}  # fmt: skip


@pytest.mark.parametrize(("key", "text"), CHANGED.values(), ids=CHANGED)
def test_a_change_that_the_function_uses_is_named(project, monkeypatch, key, text):
    assert list(changed(script(project, monkeypatch, text))) == [key]


UNCHANGED = {
    "nothing": "import conf\n" + READS_LR,
    "the same number": "import conf\nconf.LR = 0.1\n" + READS_LR,
    "not used": "import conf\nconf.LR = 5\n" + returns("conf.NAMES"),
    "of another object": "import conf, sys\nconf.LR = 5\ndef f(x=sys):\n    return conf.NAMES or x.LR\n",
    "a global of the script": "from conf import LR\nLR = 5\n" + returns("LR"),
    "a list of the script": "from conf import NAMES\nNAMES.append(1)\n" + returns("NAMES"),
    "set by the function": "import conf\nconf.LR = 5\ndef f():\n    conf.LR = 5\n    return conf.LR\n",
    "an item that the function sets": (
        "import conf\nconf.SETTINGS['lr'] = 2\ndef f():\n    conf.SETTINGS['lr'] = 2\n    return conf.SETTINGS\n"
    ),
    "registered by the function": (
        "import helpers\ndef mine(): pass\nhelpers.register(mine)\n"
        "def f():\n    helpers.register(mine)\n    return helpers.known('mine')\n"
    ),
    "only the function": (
        "import conf\ndef fill(to):\n    to['x'] = 1\n"
        "def f():\n    fill(conf.SETTINGS)\n    return conf.SETTINGS\nf()\n"
    ),
    "set by its name": "import conf\nconf.LR = 5\ndef f():\n    setattr(conf, 'LR', 5)\n    return conf.LR\n",
    "set by the dict": "import conf\nconf.LR = 5\ndef f():\n    conf.__dict__.update(LR=5)\n    return conf.LR\n",
    "a number of another kind": "import conf\nclass Rate(float): pass\nconf.LR = Rate(0.1)\n" + READS_LR,
    "set by a helper of the function": (
        "import conf, helpers\nhelpers.use(5)\ndef f():\n    helpers.use(5)\n    return conf.LR\n"
    ),
}


@pytest.mark.parametrize("text", UNCHANGED.values(), ids=UNCHANGED)
def test_nothing_is_said_of_what_the_job_finds_too_or_does_not_use(project, monkeypatch, text):
    assert changed(script(project, monkeypatch, text)) == {}


def test_a_module_that_is_sent_by_value_has_its_changes(project, monkeypatch):
    cloudpickle = pytest.importorskip("cloudpickle")
    function = script(project, monkeypatch, "import conf, helpers\nconf.LR = 0.5\n" + returns("conf.LR, helpers"))
    conf = sys.modules["conf"]

    cloudpickle.register_pickle_by_value(conf)
    try:
        assert changed(function) == {}
    finally:
        cloudpickle.unregister_pickle_by_value(conf)
    assert list(changed(function)) == ["conf.LR"]


SETS_ITSELF = {
    "a function of it": "LR = 0.1\ndef use():\n    global LR\n    LR = 5\nuse()\n",
    "a later statement": "LR = 0.1\nLR += 4.9\n",
    "a condition": "import sys\nLR = 0.1\nif sys:\n    LR = 5\n",
    "a failed import": "LR = 0.1\ntry:\n    import nowhere_mod\nexcept ImportError:\n    LR = 5\n",
    "a loop": "LR = 0.1\nfor LR in (1, 5):\n    pass\n",
    "a block": "LR = 0.1\nimport io\nwith io.StringIO() as LR:\n    pass\nLR = 5\n",
    "its globals": "LR = 0.1\nglobals()['LR'] = 5\n",
    "an import of all": "LR = 0.1\nfrom elsewhere import *\n",
    "an import": "LR = 0.1\nfrom elsewhere import LR\n",
    "its entry in sys.modules": "import sys\nLR = 0.1\nsys.modules[__name__].LR = 5\n",
    "a module that it imports": "LR = 0.1\nimport sets_it\n",
    "a function of another module": "LR = 0.1\nimport calls_it\n",
    "a function with a table": "LR = 0.1\nimport by_table\n",
    "a computed value": "LR = sum([2, 3])\n",
    "a removed name": "LR = 0.1\ndel LR\nLR = 5\n",
    "a class of that name": "LR = 0.1\nclass LR: pass\n",
    "no Python that is known": "LR = 5\n",
}
OTHERS = {
    "elsewhere": "LR = 5\n",
    "sets_it": "import conf\nconf.LR = 5\n",
    "calls_it": "import conf\ndef use(x):\n    conf.LR = x\ndef begin():\n    use(5)\nbegin()\n",
    "by_table": "import conf\nfor name, value in {'LR': 5}.items():\n    setattr(conf, name, value)\n",
}


@pytest.mark.parametrize("conf", SETS_ITSELF.values(), ids=SETS_ITSELF)
def test_nothing_is_said_of_what_the_modules_set_themselves(project, monkeypatch, conf):
    function = script(project, monkeypatch, "import conf\n" + READS_LR, conf=conf, **OTHERS)

    assert changed(function) == {}


def test_what_the_module_and_the_script_set_is_left_alone(project, monkeypatch):
    text = "import conf\nconf.LR = 7\n" + READS_LR

    assert changed(script(project, monkeypatch, text, conf="LR = 0.1\ndef use(x):\n    global LR\n    LR = x\n")) == {}


@pytest.mark.parametrize(
    "model",
    ["class Model:\n    SIZE = 64\n    def grow(self):\n        type(self).SIZE = 65\n",
     "@str\nclass Model:\n    SIZE = 64\n", "from enum import Enum\nclass Model(Enum):\n    SIZE = 64\n",
     "class Model:\n    SIZE = 64\n    SIZE = 65\n",
     "from typing import NamedTuple\nclass Model(NamedTuple):\n    SIZE: int = 64\n"],
)  # fmt: skip
def test_nothing_is_said_of_a_class_that_changes_itself(project, monkeypatch, model):
    text = "import helpers\ndef unused(x):\n    x.SIZE = 1\n" + returns("helpers.Model.SIZE")

    assert changed(script(project, monkeypatch, text, helpers=model)) == {}


def test_nothing_is_said_of_names_that_come_with_an_import_of_all(project, monkeypatch):
    text = "import conf\n" + returns("conf.RATE")

    assert changed(script(project, monkeypatch, text, conf="from more import *\n", more="RATE = 1\n")) == {}


def test_nothing_is_said_of_globals_that_an_enumeration_makes(project, monkeypatch):
    made = (
        "import enum, signal\nenum.IntEnum._convert_('Own', __name__, lambda name: name.startswith('SIGIN'), signal)\n"
    )

    assert changed(script(project, monkeypatch, "import conf\n" + returns("conf.SIGINT"), conf=made)) == {}


def test_a_module_without_a_file_does_not_hide_the_changes_of_others(project, monkeypatch):
    text = "import conf, mine.inner\nconf.LR = 5\n" + returns("conf.LR, mine.inner.A")
    function = script(project, monkeypatch, text, mine__init="", mine__inner="A = 1\n")
    monkeypatch.delattr("mine.inner.__file__")

    assert list(changed(function)) == ["conf.LR"]


def test_what_a_script_registers_may_be_registered_in_the_job_where_it_is_a_module_too(project, monkeypatch):
    text = CHANGED["a registry"][1]

    assert changed(script(project, monkeypatch, text, conf=f"def again():\n    import script\n{CONF}")) == {}


def test_a_mock_in_place_of_a_function_is_named(project, monkeypatch):
    function = script(project, monkeypatch, "import helpers\ndef f():\n    return helpers.load()\n")

    with mock.patch("helpers.load"):
        assert list(changed(function)) == ["helpers.load"]
    assert changed(function) == {}


def test_a_submodule_is_named_and_its_name_in_its_package_is_not_a_change(project, monkeypatch):
    text = "import mine.conf\nmine.conf.LR = 4\ndef f():\n    return mine.conf.LR\n"

    assert list(changed(script(project, monkeypatch, text, mine__init="", mine__conf="LR = 1\n"))) == ["mine.conf.LR"]


def test_a_cell_of_a_notebook_counts_as_the_script_does(project, monkeypatch):
    function = script(project, monkeypatch, "import conf\ndef f():\n    return conf.NAMES\n")
    sys.modules["conf"].NAMES.append("b")
    assert changed(function) == {}

    monkeypatch.setattr(
        sys.modules["__main__"], "In", ["", "%matplotlib inline\n", "conf.NAMES.append('b')"], raising=False
    )

    assert list(changed(function)) == ["conf.NAMES"]


def test_a_module_that_was_edited_since_its_import_is_only_reported_as_such(project, monkeypatch):
    function = script(project, monkeypatch, "import conf\n" + READS_LR)
    write(project, conf="LR = 0.25\n")

    assert payload.pack(function, (), {}, place=PLACE).edited == ("conf",)
    assert changed(function) == {}


def test_a_module_of_a_kind_of_its_own_is_not_looked_at(project, monkeypatch):
    class Lazy(types.ModuleType):
        LR = 3

    function = script(project, monkeypatch, "import helpers, conf\nconf.LR = 5\ndef f():\n    return helpers.step()\n")
    assert list(changed(function)) == ["conf.LR"]
    sys.modules["conf"].__class__ = Lazy

    assert changed(function) == {}


class Odd:
    def __eq__(self, other: object) -> bool:
        raise ValueError("what is this?")

    __hash__ = object.__hash__

    @property
    def __class__(self):
        raise ValueError("of which kind?")


def test_a_value_that_cannot_be_looked_at_does_no_harm(project, monkeypatch):
    function = script(project, monkeypatch, "import conf\ndef f():\n    return conf.LR, conf.NAMES\n")
    conf: Any = sys.modules["conf"]
    conf.LR, conf.NAMES[0] = Odd(), Odd()

    assert list(changed(function)) == ["conf.LR"]


def test_only_numbers_are_shown(project, monkeypatch):
    text = "import conf\nconf.LR, conf.TOKEN = 0.5, 'hunter2'\ndef f():\n    return conf.LR, conf.TOKEN\n"
    said = changed(script(project, monkeypatch, text))

    assert said["conf.LR"] == (
        "conf.LR is 0.5 on this machine, and 0.1 in the job, which imports conf from its file: "
        "set it inside the function"
    )
    assert said["conf.TOKEN"] == (
        "conf.TOKEN was changed on this machine, but not in the job, which imports conf from its file: "
        "set it inside the function"
    )


def test_later_calls_parse_nothing_again(project, monkeypatch):
    function = script(project, monkeypatch, "import conf\nconf.LR = 0.5\n" + READS_LR)
    changed(function)
    parsed: list[object] = []
    monkeypatch.setattr("ast.parse", lambda *args, **_: parsed.append(args))

    assert list(changed(function)) == ["conf.LR"] and parsed == []
