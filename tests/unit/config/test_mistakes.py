"""Mistakes in clusterfn.yml, as the program reports them: the place, what is wrong, and one thing to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.programs import main


@pytest.fixture
def complaint(tmp_path, monkeypatch, capsys) -> Callable[[str], str]:
    """What a command says of a clusterfn.yml, from the place of the mistake on."""
    path = tmp_path / "clusterfn.yml"
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    def read(text: str) -> str:
        path.write_text(text, encoding="utf-8")
        assert main(["jobs", "a"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"ConfigError: {path}:") and "hunter2" not in said
        return said.partition(f"{path}:")[2]

    return read


BAD = [  # what stands below `a:`, file:line:column, what the message says
    ("scheduler: no", "3:16", '"no" is not allowed', "bare, slurm, grid_engine, local"),
    ("schedulr: bare", "3:5", 'unknown key "schedulr"; did you mean scheduler?', "scheduler"),
    ("root: /x", "3:5", "`scheduler` is missing", "bare | slurm | grid_engine | local"),
    ("scheduler: bare\nscheduler: slurm", "4:5", 'duplicate key "scheduler", first used in line 3', "keep one"),
    ("scheduler: bare\nroot: 1:30", "4:11", '"1:30" is a number in YAML', "in quotes"),
    ("scheduler: bare\nroot: yes", "4:11", '"yes" means true or false', "in quotes"),
    ("scheduler: bare\nroot:", "4:10", '"" means nothing', "give it a value"),
    ("scheduler: bare\nroot: ~", "4:11", '"~" means nothing', "give it a value"),
    ("scheduler: bare\ndefaults: {memory: ~}", "4:24", '"~" is not an amount of memory', '"16GB"'),
    ("scheduler: bare\ndefaults: {time: 2026-01-01}", "4:22", "is not a duration", ' "90min"'),
    ("scheduler: bare\ndefaults: {time: [2h]}", "4:22", "a list is not a duration", ' "90min"'),
    ("scheduler: bare\nroot: work", "4:11", '"work" is not an absolute path', "start it with"),
    ("scheduler: slurm\nroot: /a%b", "4:11", "SLURM expands %", "without these"),
    ('scheduler: bare\nroot: "/a\\nb"', "4:11", "a line break or another control", "one line"),
    ("scheduler: bare\naddress: -oProxyCommand=x", "4:14", "is not an address", "user@name:port"),
    ("scheduler: bare\naddress: u@-oProxyCommand=x", "4:14", "is not an address", "user@name:port"),
    ("scheduler: bare\naddress: -l@host", "4:14", "is not an address", "user@name:port"),
    ("scheduler: bare\naddress: 'a;id'", "4:14", "is not an address", "user@name:port"),
    ("scheduler: bare\naddress: a:0", "4:14", "is not an address", "user@name:port"),
    ("scheduler: bare\naddress: a:99999", "4:14", "is not an address", "user@name:port"),
    ("scheduler: local\naddress: a", "4:14", "this machine takes no address", "remove `scheduler: local`"),
    ("scheduler: bare\ntransport: local\naddress: a", "5:14", "takes no address", "remove `transport: local`"),
    ("scheduler: bare\nenvironment: 'python:3.11'", "4:18", "names a version of Python", "the path of an interpreter"),
    ("scheduler: local\ntransport: openssh", "4:16", "without ssh", "remove"),
    ("scheduler: bare\ndefaults: {cores: 0}", "4:23", '"0" is not a whole number of at least 1', "in digits"),
    ("scheduler: bare\ndefaults: {cores: 010}", "4:23", '"010" is not a whole number', "leading zero"),
    ("scheduler: bare\ndefaults: {cores: '4'}", "4:23", '"4" is not a whole number', "without quotes"),
    ("scheduler: bare\ndefaults: {gpus: -1}", "4:22", '"-1" is not a whole number of at least 0', "in digits"),
    ("scheduler: bare\ndefaults: {memory: 16}", "4:24", '"16" is not an amount of memory', '"16GB"'),
    ("scheduler: bare\ndefaults: {time: 60}", "4:22", '"60" is not a duration', "with a unit and in quotes"),
    ("address:py36", "3:5", 'expected keys, found "address:py36"', "put a space after the colon of `address:`"),
    ("address:py36\nscheduler: bare", "4:14", "not YAML", "put a space after the colon of `address:`"),
    ("address: py36\nscheduler:bare\nroot: /x", "5:5", "not YAML", "put a space after the colon of `scheduler:`"),
    ("scheduler: bare\ndefaults: {time: 1:30}", "4:22", '"1:30" is not a duration', '"02:00:00"'),
    ("scheduler: bare\ndefaults: {gpu: 1}", "4:16", 'unknown key "gpu"', "the key is `gpus:`"),
    ("scheduler: bare\ndefaults: [1]", "4:15", "expected keys, found a list", "key: value"),
    ("scheduler: bare\nenvironment: 'conda:a'\ndefaults: {environment: b}", "5:29",
     "the environment is set twice", "line 4"),
    (f"scheduler: bare\nkeep: {'9' * 400}d", "4:11", "is not a duration", '"14d"'),
    ("scheduler: bare\nlimits: {cards: 4}", "4:14", 'unknown key "cards"', "cores, gpus, jobs, memory"),
    ("scheduler: bare\nlimits: {jobs: 0}", "4:20", "not a whole number of at least 1", ""),
    ("scheduler: slurm\nspare: off", "4:12", "no process waits on the host between calls", "remove it"),
    ("scheduler: bare\nspare: never", "4:12", "choose one of on, true, yes, off, false, no", ""),
    ("scheduler: slurm\nlimits: {gpus: 4}", "4:13", "with SLURM the scheduler sets limits, by QOS", "remove it"),
    ("scheduler: bare\ncontainer: [podman, run, '{image}']", "4:16", "podman cannot be used: ending", "podman save"),
    ("scheduler: bare\nenvironment: docker:x", "4:18", '"docker:x" cannot be used: another', "apptainer pull"),
    ("scheduler: bare\nenvironment: /x.sif", "4:18", '"/x.sif" is not a kind', 'environment: "apptainer:/x.sif"'),
    ("scheduler: bare\nimage: /x.sif", "4:5", 'unknown key "image"', 'environment: "apptainer:/image.sif"'),
    ("scheduler: bare\nvolumes: [/data]", "4:5", 'unknown key "volumes"', "the key is `binds:`"),
    ("scheduler: bare\nmodules: [a b]", "4:14", '"a b" cannot name a module', "a list"),
    ("scheduler: bare\nsetup: {a: b}", "4:12", "expected a string, found a mapping", "in quotes"),
    ("scheduler: bare\nsetup:\n- echo a: b", "5:7", "expected a string, found a mapping", "in quotes"),
    ("scheduler: bare\naddress: [::1]", "4:15", "not YAML", "quotes around a value"),
    ("scheduler: bare\naddress: [fe80::1]", "4:14", "expected a string, found a list", "in quotes"),
    ("scheduler: bare\naddress: ada@fe80::1%eth0", "4:14", "is not an address", '"ada@[fe80::1%eth0]"'),
    ("scheduler: bare\nIdentityFile: ~/.ssh/hpc", "4:5", 'unknown key "IdentityFile"', "~/.ssh/config"),
    ("scheduler: bare\nssh_config: ~no-one/x", "4:17", "~no-one/x: this machine has no user no-one", "in full"),
    ("scheduler: bare\nenvironment: ~no-one/e.yml", "4:18", "this machine has no user no-one", "in full"),
    ("scheduler: bare\nproxy_jump: gate", "4:5", 'unknown key "proxy_jump"', "~/.ssh/config"),
    ("scheduler: bare\nenv: {A-B: x}", "4:11", '"A-B" cannot name a variable', "letters"),
    ("scheduler: bare\nenv: {A: $HOME/a}", "4:14", '"$HOME/a" would stay as it is', 'export NAME="$HOME/x"'),
    ("scheduler: bare\nenv: {PATH: /a:~/bin}", "4:17", "only a shell expands it", "in `setup:`"),
    ("scheduler: slurm\nscheduler_env: {SLURM_CONF: ~/a.conf}", "4:33", "only a shell expands it", "the whole"),
    ("scheduler: bare\nenv: {CUDA_VISIBLE_DEVICES: 0}", "4:11", "is set by clusterfn itself", "use gpus="),
    ("scheduler: bare\nslurm: {}", "4:12", "needs `scheduler: slurm`, not bare", "remove"),
    ("scheduler: bare\ngrid_engine: {}", "4:18", "needs `scheduler: grid_engine`, not bare", "remove"),
    ("scheduler: grid_engine\nlimits: {gpus: 4}", "4:13", "with Grid Engine the scheduler sets limits", "qconf -srqsl"),
    ("scheduler: grid_engine\nroot: /a:b", "4:11", "Grid Engine expands or splits paths", "without these"),
    ("scheduler: grid_engine\ngrid_engine: {queue: 'a b'}", "4:26", '"a b" cannot name anything', "one word"),
    ("scheduler: grid_engine\ngrid_engine: {q: x}", "4:19", 'unknown key "q"', None),
    ("scheduler: grid_engine\ngrid_engine: {resources: {h_rt: 1}}", "4:31", "clusterfn sets `-l h_rt` itself", "time="),
    ("scheduler: grid_engine\ngrid_engine: {resources: {a: 'x,y=1'}}", "4:34",
     "not the value of a resource", "one word"),
    ("scheduler: slurm\ndefaults: {gpu_memory: 24}", "4:28", '"24" is not an amount of memory', '"16GB"'),
    ("scheduler: bare\nscheduler_path: /x", "4:21", "this key needs `scheduler: slurm` or `scheduler:", "remove"),
    ("scheduler: bare\nscheduler_path: /opt/slurm/bin", "4:21", "not bare", "set `scheduler: slurm` or `schedul"),
    ("scheduler: bare\npriority: 1", "4:5", 'unknown key "priority"', "of each call: write @cluster(priority=…)"),
    ("scheduler: bare\nnice: 1", "4:5", 'unknown key "nice"', "@cluster(priority=…)"),
    ("scheduler: bare\ndefaults: {retries: 1}", "4:16", 'unknown key "retries"', "write @cluster(retries=…)"),
    ("scheduler: slurm\nqueue_timeout: 1h", "4:20", "the scheduler decides how long jobs wait", "job.cancel()"),
    ("scheduler: bare\ndefaults: {queue_timeout: 1h}", "4:16", "unknown key", "below the host, beside `defaults:`"),
    ("scheduler: slurm\nscheduler_path: [bin]", "4:21", '"bin" is not an absolute path', "[/opt/slurm/bin]"),
    ("scheduler: slurm\nscheduler_path: '/a:/b'", "4:21", '"/a:/b" is several folders in one text', "a list"),
    ("scheduler: slurm\nscheduler_env: {PATH: /a}", "4:21", "PATH is that of the host", "scheduler_path"),
    ("scheduler: slurm\nscheduler_env: {SBATCH_ACCOUNT: a}", "4:21", "does not pass SBATCH_ACCOUNT on", "slurm:"),
    ("scheduler: slurm\nscheduler_env: {SLURM_CLUSTERS: a}", "4:21", "does not pass SLURM_CLUSTERS on", "slurm:"),
    ("scheduler: slurm\nscheduler_env: {A-B: x}", "4:21", "cannot name a variable", "letters"),
    ("scheduler: slurm\npath: /opt/slurm/bin", "4:5", "path", "scheduler_path:"),
    ("scheduler: slurm\nslurm: {-p: x}", "4:13", '"-p" is not an option of sbatch', "long name"),
    ("scheduler: slurm\nslurm: {signal: USR1@60}", "4:13", "needs `--signal` for itself", "use `warn_before=`"),
    ("scheduler: slurm\nslurm: {output: x}", "4:13", "clusterfn needs `--output` for itself", "remove"),
    ("scheduler: slurm\nslurm: {mem: 4G}", "4:18", "clusterfn sets `--mem` itself",
     "use `memory=` or `defaults:`; null leaves the option out"),
    ("scheduler: slurm\nslurm: {nodes: 2}", "4:20", "nothing would run on any node but the first", "in @cluster"),
    ("scheduler: slurm\nslurm: {nodes: 1-4}", "4:20", "nothing would run on any node but the first", "`nodes: 1`"),
    ("scheduler: slurm\nslurm: {account: [a]}", "4:22", "expected a string, found a list", None),
    ("scheduler: slurm\nslurm: {exclusive: false}", "4:24", '"false" means true or false', "in quotes"),
    ('scheduler: slurm\nslurm: {comment: "a\\nb"}', "4:22", "a line break", "on one line"),
    ("scheduler: slurm\nslurm: {gres: 'gpu:2'}", "4:19", '"gpu:2" counts GPUs', "gpus="),
    ("scheduler: slurm\nslurm: {gres: 'gpu:a100:2'}", "4:19", "counts GPUs", "gpus="),
    ("scheduler: slurm\nslurm: {partition: {big: x}}", "4:25", 'unknown key "big"', "cpu, gpu"),
    ("scheduler: bare\nPassWord: hunter2", "4:5", "never read", "(ssh-copy-id HOST) or an ssh agent"),
    ("scheduler: bare\naddress: ada:hunter2@tensor01", "4:14", "a password in an address is never", "ssh-copy-id"),
    ("scheduler: bare\naddress: ssh://ada:hunter2@t", "4:14", "a password in an address is never", "ssh-copy-id"),
    ("scheduler: bare\naddress: ssh://ada@t", "4:14", "is not an address", "user@name:port"),
    ("scheduler: bare\nhost: ada:hunter2@tensor01", "4:5", 'unknown key "host"', "address:"),
    ("scheduler: bare\nroot: ada:hunter2@tensor01", "4:11", '"ada:…@tensor01" is not an absolute', "start it"),
    ("scheduler: bare\npassword: hunter2: x", "4:22", "not YAML", "quotes around a value"),
    ("scheduler: bare\nuser: ada", "4:5", 'unknown key "user"', "write it in `address:`, as user@name:port"),
    ("scheduler: bare\nhostname: t", "4:5", 'unknown key "hostname"', "the key is `address:`"),
    ("scheduler: slurm\npartition: short", "4:5", 'unknown key "partition"', "below `slurm:`"),
    ("scheduler: bare\ncores: 4", "4:5", 'unknown key "cores"', "below `defaults:`"),
    ("scheduler: bare\ngpus: 4", "4:11", 'hosts.a.gpus: expected `{only: […]}`, found "4"', "below `defaults:`"),
    ("scheduler: bare\ncpus: 4", "4:5", 'unknown key "cpus"', "`defaults: {cores: …}`"),
    ("scheduler: bare\nconda: ml", "4:5", 'unknown key "conda"', '`environment: "conda:…"`'),
    ("scheduler: bare\ndefaults: {cpus: 4}", "4:16", 'unknown key "cpus"', "the key is `cores:`"),
    ("scheduler: bare\ndefaults:\ncores: 4", "5:5", 'unknown key "cores"', "below `defaults:`"),
    ("scheduler: bare\ndefaults:", "4:14", 'expected keys, found ""', "lines below it, indented further"),
    (
        "scheduler: bare\nenvironment: {conda: ml}",
        "4:18",
        "expected a string, found a mapping",
        'write `environment: "conda:ml"`',
    ),
    (
        "scheduler: bare\nenvironment: {}",
        "4:18",
        "expected a string, found a mapping",
        'write `environment: "conda:NAME"`',
    ),
    ("scheduler: bare\nenvironment: ml", "4:18", '"ml" is not a kind', 'write `environment: "conda:ml"`'),
    ("scheduler: bare\nenvironment: 'conda: ml'", "4:18", "is not a kind", 'write `environment: "conda:ml"`'),
    ("scheduler: bare\nenvironment: python3", "4:18", "is not a kind", 'write `environment: "python:python3"`'),
    ("scheduler: bare\nenvironment: conda: ml", "4:23", "not YAML", "quotes around a value"),
    ("scheduler: slurm\nslurm: {exclude: n[1-3]}", "4:23", "not YAML", "quotes around a value"),
    ('scheduler: bare\naddress: "x\nroot: /y', "5:13", "not YAML: found unexpected end of stream", "closed quotes"),
    ("scheduler: bare\nenvironment: /e/python3", "4:18", "is not a kind", 'write `environment: "python:/e/python3"`'),
    ("scheduler: bare\nenvironment: ~/v/", "4:18", "is not a kind", 'write `environment: "python:~/v/bin/python"`'),
    ("scheduler: bare\ndefaults: {environment: ml}", "4:29", "is not a kind", '"conda:ml"'),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "place", "says", "hint"), BAD)
def test_a_mistake_is_reported_with_its_place_and_one_thing_to_do(complaint, keys, place, says, hint):
    said = complaint("hosts:\n  a:\n    " + keys.replace("\n", "\n    "))

    assert said.startswith(f"{place}: ") and says in said
    assert hint is None or hint in said.partition("\n  next:  ")[2]


WHOLE = [  # a whole file, line:column, what the message or its hint says
    ("tensor01:\n  scheduler: bare\n", "1:1", "if it is a host, write it below `hosts:`"),
    ("hosts:\ntensor01:\n  scheduler: bare\n", "2:1", "if it is a host, write it below `hosts:`"),
    ("hosts:\n  tensor01:\n  scheduler: bare\n", "2:12", "lines below it, indented further"),
    ("scheduler: bare\naddress: x\n", "1:1", "write it below the host's name, below `hosts:`"),
    ("hosts:\n  a: ada@x\n", "2:6", "write a: {address: ada@x, scheduler: …}"),
    ("hosts:\n  a: ~\n", "2:6", 'write "key: value" lines below it'),
    ("hosts: {password: hunter2}\n", "1:9", "ssh-copy-id"),
    ("", "1:1", "the file is empty"),
    ("- a\n", "1:1", "expected keys, found a list"),
    ("hosts: {}\n---\nhosts: {}\n", "2:1", "the file has a second document"),
    ("host: {}\n", "1:1", 'unknown key "host"; did you mean hosts?'),
    ("hosts:\n  no: {scheduler: bare}\n", "2:3", '"no" means true or false'),
    ("hosts:\n  a: {scheduler: bare}\n  a: {scheduler: bare}\n", "3:3", 'duplicate key "a", first used in line 2'),
    (
        "default_host: b\nhosts: {a: {scheduler: bare}}\n",
        "1:15",
        "next:  write the name of a host (local, a), or describe b",
    ),
    ("hosts: &h {}\nx: *h\n", "2:4", '"*h": aliases are not supported'),
    ("hosts: !!python/object:os.system {}\n", "1:8", "tags are not supported"),
    ("hosts: " + "[" * 40, "1:19", "nested too deeply"),
    ("hosts: {}\n# \x07\n", "2:3", "not YAML: it contains an unprintable character"),
    ("password: x\n", "1:1", "`password:` is never read"),
    ("? [a]\n: b\n", "1:3", "expected a string, found a list"),
    ("<<: {hosts: {}}\n", "1:1", '"<<" merges mappings in YAML, which is not supported'),
]


@pytest.mark.parametrize(("text", "place", "says"), WHOLE)
def test_a_file_that_is_wrong_as_a_whole(complaint, text, place, says):
    said = complaint(text)

    assert said.startswith(f"{place}: ") and says in said


def test_the_offending_line_is_shown(complaint):
    assert "\n  seen:\n    root: work  # here\n" in complaint(
        "hosts:\n  a:\n    scheduler: bare\n    root: work  # here"
    )
