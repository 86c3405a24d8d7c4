"""Which answers of a machine say that it may be a login node, and which say nothing."""

from __future__ import annotations

import os

import pytest

from clusterfn.hosts import scheduler_commands
from clusterfn.scheduler import SCHEDULERS, kind_of_site
from clusterfn.scheduler.login_node import read_signs


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"files": ["/etc/slurm/slurm.conf"]}, "it has /etc/slurm/slurm.conf, which is of SLURM"),
        ({"files": ["/cm/shared"]}, "which is of a cluster manager"),
        ({"files": ["/etc/pbs.conf"]}, "which is of PBS"),
        ({"variables": {"SGE_ROOT": "/opt/sge"}}, "SGE_ROOT is set in a login shell, which is of Grid Engine"),
        ({"variables": {"APPTAINER_CONTAINER": "/a.sif"}}, "logins run in the container /a.sif"),
        ({"programs": ["condor_submit"]}, "it has condor_submit, which is of HTCondor"),
        ({"modules": ["lsf/10"]}, "`module avail` lists lsf/10"),
        ({"hostname": "login03.hpc.example.edu"}, "it is called login03.hpc.example.edu"),
        ({"hostname": "hpc-submit"}, "it is called hpc-submit"),
        (
            {"motd": "Welcome!\nDo not compute on the login nodes.\n"},
            "its greeting says: Do not compute on the login nodes.",
        ),
        ({"aliases": {"sbatch": "sbatch is aliased to `ssh -x ann@sub.x.edu sbatch'"}}, "set up ann@sub.x.edu instead"),
        ({"aliases": {"sbatch": "alias sbatch='apptainer exec a.sif sbatch'"}}, "an alias or a function"),
    ],
)
def test_each_of_these_is_enough_to_ask(told, sentence):
    for has_gpus in (True, False):
        (said,) = read_signs(told).sentences(has_gpus)
        assert sentence in said


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"hostname": "tensor01", "motd": "Welcome to Debian. Please log in and behave.", "users": 3},
        {"hostname": "vm", "motd": "The programs included with the system are free software", "users": 9},
        {"hostname": "loginov-pc", "modules": [], "files": [], "programs": [], "variables": {}, "aliases": {}},
        {"hostname": "blockhead", "users": 1},
    ],
)
def test_a_plain_server_has_no_signs(told):
    assert read_signs(told).sentences(has_gpus=False) == ()


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"users": 30}, "30 users are logged in"),
        ({"files": ["/run/munge/munge.socket.2"]}, "it has /run/munge/munge.socket.2, which is of SLURM"),
        ({"files": ["/var/spool/slurmd"]}, "it has /var/spool/slurmd, which is of SLURM"),
        ({"files": ["/var/spool/pbs"]}, "it has /var/spool/pbs, which is of PBS"),
    ],
)
def test_what_many_servers_have_is_a_sign_only_without_gpus_or_beside_another(told, sentence):
    greeting = {"motd": "This is a login node."}

    assert read_signs(told).sentences(has_gpus=True) == ()
    assert read_signs(told).sentences(has_gpus=False) == (sentence,)
    assert read_signs({**told, **greeting}).sentences(has_gpus=True) == (
        "its greeting says: This is a login node.", sentence,
    )  # fmt: skip


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
