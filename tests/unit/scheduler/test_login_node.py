"""Which answers of a machine say that it may be a login node, and which say nothing."""

from __future__ import annotations

import os

import pytest

from clusterfn.hosts import scheduler_commands
from clusterfn.hosts.scheduler_commands import read_signs
from clusterfn.scheduler import SCHEDULERS, kind_of_site


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"files": ["/etc/slurm/slurm.conf"]}, "it has /etc/slurm/slurm.conf, which is of SLURM"),
        ({"variables": {"SGE_ROOT": "/opt/sge"}}, "SGE_ROOT is set in a login shell, which is of Grid Engine"),
        ({"variables": {"APPTAINER_CONTAINER": "/a.sif"}}, "logins run in the container /a.sif"),
        ({"programs": ["condor_submit"]}, "it has condor_submit, which is of HTCondor"),
        ({"hostname": "login03.hpc.example.edu"}, "it is called login03.hpc.example.edu"),
        (
            {"motd": "Welcome!\nDo not compute on the login nodes.\n"},
            "its greeting says: Do not compute on the login nodes.",
        ),
        ({"aliases": {"sbatch": "sbatch is aliased to `ssh -x ann@sub.x.edu sbatch'"}}, "set up ann@sub.x.edu instead"),
    ],
)
def test_each_of_these_is_enough_to_ask(told, sentence):
    (said,) = read_signs(told).sentences
    assert sentence in said


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"hostname": "tensor01", "motd": "Welcome to Debian. Please log in and behave."},
        {"hostname": "loginov-pc", "files": [], "programs": [], "variables": {}, "aliases": {}},
        {"hostname": "blockhead"},
    ],
)
def test_a_plain_server_has_no_signs(told):
    assert read_signs(told).sentences == ()


def test_schedulers_that_clusterfn_does_not_know_are_named():
    told = {"programs": ["bsub"], "files": ["/etc/pbs.conf", "/opt/slurm"]}

    assert read_signs(told).unsupported == ("PBS", "LSF")


def test_an_answer_that_makes_no_sense_finds_nothing() -> None:
    for printed in (
        b"", b"[]", b"{}", b'{"found": {"slurm": {}}}', b'{"found": 3}', b'{"found": {}, "signs": {"files": 3}}',
        b'{"found": {"slurm": {"how": "x", "path": ["/a\\n  evil: 1"], "env": {}}}}',
    ):  # fmt: skip
        assert scheduler_commands.read(printed) == scheduler_commands.LoginShellAnswer()


def test_both_schedulers_say_how_their_commands_are_found() -> None:
    for word in SCHEDULERS:
        kind = kind_of_site(word)
        assert kind is not None and kind.commands.programs and kind.commands.probe[0] in kind.commands.programs
        assert os.path.isabs(kind.commands.usual[-1])
