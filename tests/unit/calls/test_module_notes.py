"""What a script has set in the user's own modules since their import, or in `os.environ`, is named: a job lacks it."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from clusterfn.packing import payload_items
from clusterfn.packing.dependencies import Place
from tests.sent import prepared
from tests.unit.calls.own_project import write

CONF = "LR = 0.1\nBETAS = (\n    0.9,\n    0.99,\n)\nMODEL = None\nTOKEN: str = ''\nNAMES = ['a']\n"
HELPERS = """
import conf

def step():
    return conf.LR

class Trainer:
    def fit(self):
        self.LR_seen = conf.LR
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


def changed(function: Any) -> dict[str, str]:
    return {note.about: note.text for note in prepared(function, host="here").notes if note.id == "module-value"}


def variables(function: Any) -> tuple[str, ...]:
    return tuple(note.about for note in prepared(function, host="here").notes if note.id == "variable")


def returns(expression: str) -> str:
    return f"def f():\n    return {expression}\n"


READS_LR = returns("conf.LR")
CHANGED = {
    "a number": ("conf.LR", "import conf\nconf.LR = 0.5\n" + READS_LR),
    "a tuple": ("conf.BETAS", "import conf\nconf.BETAS = 0.9, 0.95\n" + returns("conf.BETAS")),
    "a string, read in a lambda": ("conf.LR", "import conf\nconf.LR = 'fast'\n" + returns("lambda: conf.LR")),
    "by setattr": ("conf.LR", "import conf\nsetattr(conf, 'LR', 1)\n" + READS_LR),
    "from a variable of that name": ("conf.LR", "import conf\nLR = 3\nconf.LR = LR\n" + READS_LR),
    "imported inside": ("conf.LR", "import conf as c\nc.LR = 2\ndef f():\n    import conf as d\n    return d.LR\n"),
    "taken inside": ("conf.LR", "import conf\nconf.LR = 2\ndef f():\n    from conf import MODEL, LR\n    return LR\n"),
    "in a helper": ("conf.LR", "import conf, helpers\nconf.LR = 2\n" + returns("helpers.step()")),
    "by a helper itself": ("conf.LR", "import conf\nfrom helpers import step as f\nconf.LR = 2\n"),
    "in a method": ("conf.LR", "import conf, helpers\nconf.LR = 2\n" + returns("helpers.Trainer().fit()")),
    "in a package": (
        "mine.conf.LR", "import mine.conf\nmine.conf.LR = 4\ndef f():\n    return mine.conf.LR, mine.conf.__name__\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("key", "text"), CHANGED.values(), ids=CHANGED)
def test_a_change_that_the_function_uses_is_named(project, monkeypatch, key, text):
    function = script(project, monkeypatch, text, mine__init="", mine__conf="LR = 1\n")

    assert list(changed(function)) == [key]


UNCHANGED = {
    "nothing": "import conf\n" + returns("conf.LR, conf.BETAS, conf.MODEL, conf.TOKEN"),
    "the same number": "import conf\nconf.LR = 0.1\n" + READS_LR,
    "a number of another kind": "import conf\nclass Rate(float): pass\nconf.LR = Rate(0.1)\n" + READS_LR,
    "a number of NumPy": "import conf, numpy\nconf.STEPS = numpy.int64(5)\n" + returns("conf.STEPS"),
    "not used": "import conf\nconf.LR = 5\n" + returns("conf.NAMES"),
    "a global of the script": "import conf\nfrom conf import LR\nconf.LR = 5\ndef f(c=conf.step):\n    return LR\n",
    "set by the function": "import conf\nconf.LR = 5\ndef f():\n    conf.LR = 5\n    return conf.LR\n",
    "a new name, without which the job has an error": "import conf\nconf.ADDED = 1\n" + returns("conf.ADDED"),
    "set by its name": "import conf\nconf.LR = 5\ndef f():\n    setattr(conf, 'LR', 5)\n    return conf.LR\n",
    "set by the dict": "import conf\nconf.LR = 5\ndef f():\n    conf.__dict__.update(LR=5)\n    return conf.LR\n",
    "set by a helper of the function": (
        "import conf, sets_it\nsets_it.use(5)\ndef f():\n    sets_it.use(5)\n    return conf.LR\n"
    ),
    "a module that replaces itself in its package": (
        "import mine\nfrom mine import settings\nsettings.settings = settings\n" + returns("mine.settings.LR")
    ),
}
SETTINGS = "import sys\nclass Settings:\n    LR = 5\nsys.modules[__name__] = Settings()\n"


@pytest.mark.parametrize("text", UNCHANGED.values(), ids=UNCHANGED)
def test_nothing_is_said_of_what_the_job_finds_too_or_does_not_use(project, monkeypatch, text):
    conf, sets_it = f"{CONF}STEPS = 5\ndef step():\n    pass\n", "import conf\ndef use(rate):\n    conf.LR = rate\n"
    modules = {"conf": conf, "sets_it": sets_it, "mine__init": "", "mine__settings": SETTINGS}

    assert changed(script(project, monkeypatch, text, **modules)) == {}


SETS_ITSELF = {
    "a function of it": "LR = 0.1\ndef use():\n    global LR\n    LR = 5\nuse()\n",
    "a later statement": "LR = 0.1\nLR += 4.9\n", "a condition": "import sys\nLR = 0.1\nif sys:\n    LR = 5\n",
    "a loop": "LR = 0.1\nfor LR in (1, 5):\n    pass\n", "its globals": "LR = 0.1\nglobals()['LR'] = 5\n",
    "an import of all": "LR = 0.1\nfrom elsewhere import *\n", "an import": "LR = 0.1\nfrom elsewhere import LR\n",
    "its entry in sys.modules": "import sys\nLR = 0.1\nsys.modules[__name__].LR = 5\n",
    "a module that it imports": "LR = 0.1\nimport sets_it\n",
    "a function with a table": "LR = 0.1\nimport by_table\n", "a computed value": "LR = sum([2, 3])\n",
    "a value in a text": "'''For example:\nLR = 0.1\n'''\nLR = sum([2, 3])\n",
    "a class of that name": "LR = 0.1\nclass LR: pass\n",
    "a caller's frame": "LR = 0.1\nimport by_frame\nby_frame.use()\n",
}  # fmt: skip
OTHERS = {
    "by_frame": "import sys\ndef use():\n    sys._getframe(1).f_globals['LR'] = 5\n",
    "elsewhere": "LR = 5\n",
    "sets_it": "import conf\nconf.LR = 5\n",
    "by_table": "import conf\nfor name, value in {'LR': 5}.items():\n    setattr(conf, name, value)\n",
}


@pytest.mark.parametrize("conf", SETS_ITSELF.values(), ids=SETS_ITSELF)
def test_nothing_is_said_of_what_the_modules_set_themselves(project, monkeypatch, conf):
    assert changed(script(project, monkeypatch, "import conf\n" + READS_LR, conf=conf, **OTHERS)) == {}


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


def test_a_module_that_was_edited_since_its_import_is_only_reported_as_such_in_a_map_too(project, monkeypatch):
    function = script(project, monkeypatch, "import conf\n" + READS_LR)
    write(project, conf="LR = 0.25\n")

    of_map = payload_items.pack(function, [()], place=Place("here", "/root")).payload.notes
    found = [prepared(function, host="here").notes for _ in range(2)]
    assert of_map == found[0] == found[1] and [note.id for note in found[0]] == ["edited"]
    assert found[0][0].text.startswith("conf has changed since this process imported it")


class Odd:
    def __eq__(self, other: object) -> bool:
        raise ValueError("what is this?")

    __hash__ = object.__hash__

    @property
    def __class__(self):
        raise ValueError("of which kind?")


def test_a_value_that_cannot_be_looked_at_does_no_harm(project, monkeypatch):
    function = script(project, monkeypatch, "import conf\n" + returns("conf.LR, conf.BETAS"))
    conf: Any = sys.modules["conf"]
    conf.LR, conf.BETAS = Odd(), (0.9, Odd())

    assert changed(function) == {}


def test_values_are_not_shown(project, monkeypatch):
    function = script(project, monkeypatch, "import conf\nconf.TOKEN = 'hunter2'\n" + returns("conf.TOKEN"))

    assert list(changed(function).values()) == [
        "conf.TOKEN was changed on this machine, but not in the job, which imports conf from its file: "
        "set it inside the function"
    ]


# variables of the environment

SETS = "import os\nos.environ['MY_DATA'] = 'here'\n"
READS = "def f():\n    import os\n    return os.environ.get('MY_DATA')\n"
VARIABLES = {
    "read in the function": SETS + READS,
    "read in a function inside": SETS + "import os\ndef f():\n    return [lambda: os.getenv('MY_DATA')]\n",
    "read in a module": SETS + "import reads_it\n" + returns("reads_it.DATA"),
    "read by a library": SETS + returns("1"),
    "set by other means": "import os\nos.environ.update(MY_DATA='here')\n" + READS,
}


@pytest.mark.parametrize("text", VARIABLES.values(), ids=VARIABLES)
def test_a_variable_that_the_script_has_set_is_named(project, monkeypatch, text):
    monkeypatch.setenv("MY_DATA", "before")
    function = script(project, monkeypatch, text, reads_it='import os\nDATA = os.environ.get("MY_DATA")\n')

    assert variables(function) == ("MY_DATA",)


NO_VARIABLES = {
    "set by a library": "import os\nos.environ.update(MY_DATA='here')\n" + returns("1"),
    "set by the function too": SETS + "def f():\n    import os\n    os.environ['MY_DATA'] = 'there'\n",
    "perhaps set by the function": SETS + "def f():\n    import os\n    os.environ.setdefault('MY_DATA', 'there')\n",
    "set by a module when it is imported": "import sets_it\n" + returns("sets_it.os.environ['MY_DATA']"),
    "the same when the program began": "import os\nos.environ['PATH'] = os.environ['PATH']\n"
    + READS.replace("MY_DATA", "PATH"),
    "its GPUs, which clusterfn chooses": "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'\n" + returns("1"),
}


@pytest.mark.parametrize("text", NO_VARIABLES.values(), ids=NO_VARIABLES)
def test_a_variable_that_the_job_has_too_or_does_not_use_is_not_named(project, monkeypatch, text):
    for name in ("MY_DATA", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "before")
    function = script(project, monkeypatch, text, sets_it='import os\nos.environ["MY_DATA"] = "x"\n')

    assert variables(function) == ()


def test_variables_are_searched_again_only_once_others_are_set(project, monkeypatch):
    for name in ("MY_DATA", "MY_MODEL"):
        monkeypatch.delenv(name, raising=False)
    text = SETS + "def f():\n    import os\n    return os.environ.get('MY_DATA'), os.environ.get('MY_MODEL')\n"
    function, searched = script(project, monkeypatch, text), []
    assert variables(function) == ("MY_DATA",)
    with monkeypatch.context() as patch:
        patch.setattr("dis.get_instructions", lambda code: searched.append(code) or [])
        assert variables(function) == ("MY_DATA",) and searched == []

    monkeypatch.setenv("MY_MODEL", "m")

    assert variables(function) == ("MY_DATA", "MY_MODEL")


def test_the_next_script_of_a_notebook_is_searched_for_itself(project, monkeypatch):
    monkeypatch.setenv("MY_DATA", "before")
    function = script(project, monkeypatch, VARIABLES["read by a library"])
    assert variables(function) == ("MY_DATA",)
    (project / "next.py").write_text("")

    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(project / "next.py"))

    assert variables(function) == ()
