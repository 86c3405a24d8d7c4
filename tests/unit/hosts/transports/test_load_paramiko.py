"""paramiko comes without `invoke`, and with it as soon as somebody uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOAD = "import sys; from clusterfn.hosts.transports.ssh_config_file import load_paramiko; load_paramiko(); "


def printed(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return (ran.stdout + ran.stderr).strip()


def test_paramiko_comes_without_invoke() -> None:
    code = "import paramiko; print(sorted(name for name in sys.modules if name.partition('.')[0] == 'invoke'))"

    assert printed(LOAD + code) == "[]"


def test_a_connection_comes_without_invoke() -> None:
    code = (
        "import sys; from clusterfn.config.spec import Host; from clusterfn.hosts.transports import transport_for\n"
        "transport_for(Host('lab8', 'lab8', 'bare', 'yml:1', transport='paramiko'))\n"
        "print('paramiko' in sys.modules, 'invoke' in sys.modules)"
    )

    assert printed(code) == "True False"


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("import invoke; print(invoke.run('echo ran', hide=True).ok)", "True"),
        ("import invoke.tasks; from invoke import run; print(invoke.tasks.__name__, run.__module__)", "invoke"),
        ("import paramiko; print(paramiko.config.invoke.run('true').ok)", "True"),
        (
            "import paramiko; text = 'Match exec true\\n  User ada\\n'; "
            "print(paramiko.SSHConfig.from_text(text).lookup('h')['user'])",
            "ada",
        ),
    ],
)
def test_a_program_that_uses_invoke_itself_gets_it(use: str, says: str) -> None:
    pytest.importorskip("invoke")

    assert says in printed(LOAD + use)


def test_a_thread_that_imports_invoke_meanwhile_gets_it_whole() -> None:
    pytest.importorskip("invoke")
    # a stand-in for paramiko, whose import does what another thread may do at that moment
    code = (
        "import sys, types; from importlib import abc, machinery, util\n"
        "from clusterfn.hosts.transports.ssh_config_file import load_paramiko\n"
        "class Finder(abc.MetaPathFinder, abc.Loader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        return machinery.ModuleSpec(name, self) if name == 'paramiko' else None\n"
        "    def exec_module(self, module):\n"
        "        from invoke import run\n"
        "        import invoke.tasks\n"
        "        print(run('true').ok, invoke.tasks.task.__name__)\n"
        "sys.meta_path.insert(0, Finder()); load_paramiko()\n"
        "import invoke; print(type(invoke) is types.ModuleType)"
    )

    assert printed(code).split() == ["True", "task", "True"]
