"""clusterfn.yml: what it may say, and how each mistake is told."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfn.config import config_file, yamlfile
from clusterfn.config.keys import HOST_KEYS
from clusterfn.config.spec import EnvironmentSettings, Host, Limits, Resources
from clusterfn.errors import ConfigError

ROOT = Path(__file__).parents[3]


def parsed(text):
    return config_file.parse(text.encode("utf-8", "surrogatepass"), Path("/work/clusterfn.yml"))


def host(keys):
    return parsed("hosts:\n  a:\n    " + keys.replace("\n", "\n    ")).hosts["a"]


TWO = "hosts:\n  a: {scheduler: bare}\n  b: {scheduler: slurm}\n"


@pytest.mark.parametrize(
    "text, name, variable, chosen, because",
    [
        (TWO, "b", "a", "b", "host='b'"),
        (TWO, None, "a", "a", "$CLUSTERFN_HOST=a"),
        ("default_host: b\n" + TWO, None, None, "b", "default_host: in /work/clusterfn.yml:1"),
        ("hosts: {only: {scheduler: bare}}", None, None, "only", "the only host in /work/clusterfn.yml"),
        ("hosts: {}", None, None, "local", "/work/clusterfn.yml defines no host"),
        (TWO, "local", None, "local", "host='local'"),
    ],
)
def test_which_host_and_why(text, name, variable, chosen, because, monkeypatch):
    monkeypatch.setenv("CLUSTERFN_HOST", variable or "")
    got, why = parsed(text).resolve(name)
    assert (got.name, why) == (chosen, because)


@pytest.mark.parametrize(("value", "host"), [("1", "local"), ("yes", "local"), ("0", "b"), ("", "b")])
def test_a_variable_sends_every_call_to_this_machine(monkeypatch, value, host):
    monkeypatch.setenv("CLUSTERFN_LOCAL", value)

    assert parsed(TWO).resolve("b")[0].name == host


def test_several_hosts_without_a_default_are_listed(monkeypatch):
    monkeypatch.delenv("CLUSTERFN_HOST", raising=False)
    with pytest.raises(ConfigError, match="several hosts and no default_host: a, b") as caught:
        parsed(TWO).resolve(None)
    assert 'host="a"' in caught.value.hint


def test_an_unknown_host_names_the_nearest_and_who_asked(monkeypatch):
    monkeypatch.setenv("CLUSTERFN_HOST", "tensor1")
    with pytest.raises(ConfigError, match=r"no host 'tensor1'; did you mean tensor01\? \(\$CLUSTERFN_HOST=tensor1\)"):
        parsed("hosts: {tensor01: {scheduler: bare}}").resolve(None)


def test_every_key_becomes_its_fact():
    got = host(
        "scheduler: slurm\naddress: ada@hpc.example.org:2222\ntransport: openssh\nssh_config: ssh/config\n"
        'root: $SCRATCH/x y\npython: /usr/bin/python3\nenvironment: "conda:torch"\n'
        "defaults: {cores: 4, memory: 16GB, gpus: 2, time: 02:00:00, gpu_memory: 24GB, gpu_type: a100}\n"
        "setup: |\n  if true; then\n    A=1\n  fi\n"
        "modules: [gcc/12, cuda]\nprolog: [a, b]\nenv: {A: 4, B: 'no', C: 1.50}\nslurm: {account: x}\n"
        "gpu_option: gpus\ngpu_sizes: {a100: 80GB}\n"
        "lease: file\npoll_floor: 5s\nqueue_timeout: 2h\nkeep: 36h\nlogin_ttl: 1d"
    )
    assert got == Host(
        name="a", address="ada@hpc.example.org:2222", scheduler="slurm", source="/work/clusterfn.yml:2",
        transport="openssh", ssh_config="/work/ssh/config", root="$SCRATCH/x y", python="/usr/bin/python3",
        environment="conda:torch", defaults=Resources(4, 16 * 2**30, 2, 7200.0, 24 * 2**30, "a100"),
        setup=("if true; then", "  A=1", "fi"), modules=("gcc/12", "cuda"), prolog=("a", "b"),
        env={"A": "4", "B": "no", "C": "1.50"}, scheduler_options={"account": "x"}, gpu_option="gpus",
        gpu_sizes={"a100": 80 * 2**30}, lease="file",
        poll_floor_s=5.0, queue_timeout_s=7200.0, keep_days=1.5, login_ttl_s=86400.0,
    )  # fmt: skip


MAKING = (
    "env_root: /group/x\nfetch_on: client\nbuild_on: node\nbuild_partition: cpu\npurge_days: 30d\n"
    'cuda: {driver: "575.57.08", capability: "8.6, 9.0"}'
)
FILES = {"environment.yml": "/work/environment.yml", "envs/a.yaml": "/work/envs/a.yaml", "/x/a.yml": "/x/a.yml"}
TAKEN = [  # what stands below `a:`, a field of the host, and its value
    ("scheduler: bare\nlimits: {gpus: 4, memory: 1GB, jobs: 20}", "limits", Limits(4, None, 2**30, 20)),
    ("scheduler: slurm\ntransport: local", "address", ""),
    ("scheduler: SLURM", "scheduler", "slurm"), ("scheduler: Bare", "scheduler", "bare"),
    ("scheduler: bare\ndefaults: {environment: 'venv:~/v'}", "environment", "venv:~/v"),
    *((f'scheduler: local\nenvironment: "{text}"', "environment", text)
      for text in ("conda:ml", "python:/p", "venv:~/v", "prefix:/p", "current")),
    *((f"scheduler: bare\n{place % text}", "environment", file) for text, file in FILES.items()
      for place in ("environment: %s", "defaults: {environment: %s}")),
    *((f'scheduler: bare\naddress: "{address}"', "address", address)
      for address in ("a", "a.b-c", "u@a", "u@a:22", "[::1]:22", "u.x@[fe80::1%eth0]", "über")),
    *((f"scheduler: bare\nenv_python: {text}", "making", EnvironmentSettings(python=text))
      for text in ("standalone", "host", "/usr/bin/python3.11", "~/py/python3", "python3.11")),
    (f"scheduler: slurm\n{MAKING}", "making", EnvironmentSettings(
        root="/group/x", fetch_on="client", build_on="node", partition="cpu", purge_days=30, driver="575.57.08",
        capabilities=("8.6", "9.0"))),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "field", "value"), TAKEN)
def test_what_a_key_may_say_becomes_its_fact(keys, field, value):
    assert getattr(host(keys), field) == value


def test_slurm_always_has_a_memory_limit_unless_dropped():
    assert host("scheduler: slurm").defaults.memory_bytes == 4 * 2**30
    kept = host("scheduler: slurm\ndefaults: {gpus: 1, gpu_type: t4}").defaults
    assert kept == Resources(1, 4 * 2**30, 1, gpu_type="t4")
    assert host("scheduler: slurm\nslurm: {mem: null}").defaults.memory_bytes is None
    assert host("scheduler: slurm\nslurm: {mem-per-cpu: 2G}").defaults.memory_bytes is None
    assert host("scheduler: bare").defaults.memory_bytes is None


def test_sbatch_options_keep_what_was_written():
    got = host(
        "scheduler: slurm\nslurm:\n  partition: {cpu: std, gpu: a100}\n  exclusive: true\n  time: null\n  nice: 100\n"
        "  gres: lscratch:50,gpu:a100\n  mail-type: END"
    )
    assert got.scheduler_options == {
        "partition": {"cpu": "std", "gpu": "a100"}, "exclusive": True, "time": None, "nice": "100",
        "gres": "lscratch:50,gpu:a100", "mail-type": "END",
    }  # fmt: skip


def test_a_host_may_replace_local():
    got = parsed("hosts: {local: {scheduler: local, defaults: {cores: 2}}}")
    assert (got.hosts["local"].defaults.cores, got.hosts["local"].address) == (2, "")
    assert got.hosts["local"].environment == "current"


BAD = [  # what stands below `a:`, file:line:column, what the message says
    ("scheduler: no", "3:16", '"no" is not allowed', "bare, slurm, grid_engine, local"),
    ("schedulr: bare", "3:5", 'unknown key "schedulr"; did you mean scheduler?', "scheduler"),
    ("root: /x", "3:5", "`scheduler` is missing", "bare | slurm | grid_engine | local"),
    ("scheduler: bare\nscheduler: slurm", "4:5", 'duplicate key "scheduler", first used in line 3', "keep one"),
    ("scheduler: bare\nroot: 1:30", "4:11", '"1:30" is a number in YAML', "in quotes"),
    ("scheduler: bare\nroot: yes", "4:11", '"yes" means true or false', "in quotes"),
    ("scheduler: bare\nroot:", "4:10", '"" means nothing', "in quotes"),
    ("scheduler: bare\nroot: work", "4:11", '"work" is not an absolute path', "start it with"),
    ("scheduler: slurm\nroot: /a%b", "4:11", "SLURM expands %", "without these"),
    ('scheduler: bare\nroot: "/a\\nb"', "4:11", "a line break or another control", "one line"),
    ("scheduler: bare\npython: 3.6", "4:13", '"3.6" is a number', "in quotes"),
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
    ("scheduler: bare\ndefaults: {time: 60}", "4:22", '"60" is not a duration', ': "60min"; other forms are "90min"'),
    ("scheduler: bare\ndefaults: {memory: 20 gigs}", "4:24", "is not an amount of memory", ': "20GB"'),
    ("address:py36", "3:5", 'expected keys, found "address:py36"', "put a space after the colon of `address:`"),
    ("address:py36\nscheduler: bare", "4:14", "not YAML", "put a space after the colon of `address:`"),
    ("address: py36\nscheduler:bare\nroot: /x", "5:5", "not YAML", "put a space after the colon of `scheduler:`"),
    ("scheduler: bare\ndefaults: {time: 1:30}", "4:22", '"1:30" is not a duration', '"02:00:00"'),
    ("scheduler: bare\ndefaults: {gpu: 1}", "4:16", 'unknown key "gpu"', "the key is `gpus:`"),
    ("scheduler: bare\ndefaults: [1]", "4:15", "expected keys, found a list", "key: value"),
    (
        "scheduler: bare\nenvironment: 'conda:a'\ndefaults: {environment: b}",
        "5:29",
        "the environment is set twice",
        "line 4",
    ),
    (f"scheduler: bare\nkeep: {'9' * 400}d", "4:11", "is not a duration", '"14d"'),
    ("scheduler: bare\nlimits: {cards: 4}", "4:14", 'unknown key "cards"', "cores, gpus, jobs, memory"),
    ("scheduler: bare\nlimits: {jobs: 0}", "4:20", "not a whole number of at least 1", ""),
    ("scheduler: slurm\nlimits: {gpus: 4}", "4:13", "with SLURM the scheduler sets limits, by QOS", "remove it"),
    ("scheduler: bare\nlease: flock", "4:12", '"flock" is not allowed', "socket, file"),
    ("scheduler: bare\nmodules: [a b]", "4:14", '"a b" cannot name a module', "a list"),
    ("scheduler: bare\nsetup: [1]", "4:13", '"1" is a number', "in quotes"),
    ("scheduler: bare\nsetup: {a: b}", "4:12", "expected a string, found a mapping", None),
    ("scheduler: bare\nenv: {A-B: x}", "4:11", '"A-B" cannot name a variable', "letters"),
    ("scheduler: bare\nenv: {CUDA_VISIBLE_DEVICES: 0}", "4:11", "is set by clusterfn itself", "use gpus="),
    ("scheduler: bare\nenv: {A: no}", "4:14", '"no" means true or false', "in quotes"),
    ("scheduler: bare\nslurm: {}", "4:12", "needs `scheduler: slurm`, not bare", "remove"),
    ("scheduler: bare\ngrid_engine: {}", "4:18", "needs `scheduler: grid_engine`, not bare", "remove"),
    ("scheduler: grid_engine\nlimits: {gpus: 4}", "4:13", "with Grid Engine the scheduler sets limits", "qconf -srqsl"),
    ("scheduler: grid_engine\nroot: /a:b", "4:11", "Grid Engine expands or splits paths", "without these"),
    ("scheduler: grid_engine\ngrid_engine: {queue: 'a b'}", "4:26", '"a b" cannot name anything', "one word"),
    ("scheduler: grid_engine\ngrid_engine: {q: x}", "4:19", 'unknown key "q"', None),
    ("scheduler: grid_engine\ngrid_engine: {resources: {h_rt: 1}}", "4:31", "clusterfn sets `-l h_rt` itself", "time="),
    (
        "scheduler: grid_engine\ngrid_engine: {resources: {a: 'x,y=1'}}",
        "4:34",
        "not the value of a resource",
        "one word",
    ),
    ("scheduler: bare\ngpu_sizes: {a100: 80GB}", "4:16", "needs `scheduler: slurm`, not bare", "remove"),
    ("scheduler: slurm\ngpu_sizes: {a100: 80}", "4:23", '"80" is not an amount of memory', '"16GB"'),
    ("scheduler: slurm\ngpu_sizes: {'a:b': 80GB}", "4:17", "cannot name a type of GPU", "such as a6000"),
    ("scheduler: slurm\ndefaults: {gpu_memory: 24}", "4:28", '"24" is not an amount of memory', '"24GB"'),
    ("scheduler: bare\nbuild_partition: cpu", "4:22", "this key needs `scheduler: slurm` or `scheduler:", "remove"),
    ("scheduler: bare\nscheduler_path: /opt/slurm/bin", "4:21", "not bare", "set `scheduler: slurm` or `schedul"),
    ("scheduler: bare\npriority: 1", "4:5", 'unknown key "priority"', "of each call: write @cluster(priority=…)"),
    ("scheduler: bare\nnice: 1", "4:5", 'unknown key "nice"', "@cluster(priority=…)"),
    ("scheduler: bare\ndefaults: {retries: 1}", "4:16", 'unknown key "retries"', "write @cluster(retries=…)"),
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
    (
        "scheduler: slurm\nslurm: {mem: 4G}",
        "4:18",
        "clusterfn sets `--mem` itself",
        "use `memory=` or `defaults:`; null leaves the option out",
    ),
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
    ("scheduler: bare\npassword: hunter2: x", "4:22", "not YAML", "colon"),
    ("scheduler: bare\nuser: ada", "4:5", 'unknown key "user"', "write it in `address:`, as user@name:port"),
    ("scheduler: bare\nhostname: t", "4:5", 'unknown key "hostname"', "the key is `address:`"),
    ("scheduler: slurm\npartition: short", "4:5", 'unknown key "partition"', "below `slurm:`"),
    ("scheduler: bare\ncores: 4", "4:5", 'unknown key "cores"', "below `defaults:`"),
    ("scheduler: bare\ngpus: 4", "4:11", 'hosts.a.gpus: expected `{only: […]}`, found "4"', "below `defaults:`"),
    ("scheduler: bare\ncpus: 4", "4:5", 'unknown key "cpus"', "`defaults: {cores: …}`"),
    ("scheduler: bare\nconda: ml", "4:5", 'unknown key "conda"', '`environment: "conda:…"`'),
    ("scheduler: bare\ndefaults: {cpus: 4}", "4:16", 'unknown key "cpus"', "the key is `cores:`"),
    ("scheduler: bare\ndefaults:\ncores: 4", "5:5", 'unknown key "cores"', "below `defaults:`"),
    (
        "scheduler: bare\ndefaults:",
        "4:14",
        'expected keys, found ""',
        "indent the lines below it further than defaults:",
    ),
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
    ("scheduler: bare\nenvironment: /e/python3", "4:18", "is not a kind", 'write `environment: "python:/e/python3"`'),
    ("scheduler: bare\nenvironment: ~/v/", "4:18", "is not a kind", 'write `environment: "python:~/v/bin/python"`'),
    ("scheduler: bare\ndefaults: {environment: ml}", "4:29", "is not a kind", '"conda:ml"'),
]


@pytest.mark.parametrize("keys, place, says, hint", BAD)
def test_a_mistake_is_reported_with_its_place_and_one_thing_to_do(keys, place, says, hint):
    with pytest.raises(ConfigError) as caught:
        host(keys)
    assert caught.value.message.startswith(f"/work/clusterfn.yml:{place}: ")
    assert says in caught.value.message
    assert hint is None or hint in caught.value.hint
    assert "hunter2" not in str(caught.value)


WHOLE = [  # a whole file, line:column, what the message or its hint says
    ("tensor01:\n  scheduler: bare\n", "1:1", "if it is a host, write it below `hosts:`"),
    ("hosts:\ntensor01:\n  scheduler: bare\n", "2:1", "if it is a host, write it below `hosts:`"),
    ("hosts:\n  tensor01:\n  scheduler: bare\n", "2:12", "indent the lines below it further than tensor01:"),
    ("scheduler: bare\naddress: x\n", "1:1", "write it below the host's name, below `hosts:`"),
    ("hosts:\n  a: ~\n", "2:6", 'write "key: value" lines below it'),
    ("hosts: {password: hunter2}\n", "1:9", "ssh-copy-id"),
    ("", "1:1", "the file is empty"),
    ("- a\n", "1:1", "expected keys, found a list"),
    ("just text", "1:1", 'expected keys, found "just text"'),
    ("hosts:\n\ta: 1\n", "2:1", r"not YAML: found character '\t' that cannot start any token"),
    ("hosts: [", "1:9", "not YAML"),
    ("hosts: {}\n---\nhosts: {}\n", "2:1", "not YAML: but found another document"),
    ("host: {}\n", "1:1", 'unknown key "host"; did you mean hosts?'),
    ("hosts: [a]\n", "1:8", "hosts: expected keys, found a list"),
    ("hosts:\n  no: {scheduler: bare}\n", "2:3", '"no" means true or false'),
    ("hosts:\n  -x: {scheduler: bare}\n", "2:3", '"-x" cannot name a host'),
    ("hosts:\n  a:\n", "2:5", 'hosts.a: expected keys, found ""'),
    ("hosts:\n  a: {scheduler: bare}\n  a: {scheduler: bare}\n", "3:3", 'duplicate key "a", first used in line 2'),
    ("default_host: b\nhosts: {a: {scheduler: bare}}\n", "1:15", 'there is no host "b"'),
    ("hosts: &h {}\nx: *h\n", "2:4", '"*h": aliases are not supported'),
    ("hosts: !!python/object:os.system {}\n", "1:8", "tags are not supported"),
    ("hosts: " + "[" * 40, "1:19", "nested too deeply"),
    ('hosts: "\\UFFFFFFFF"', "1:1", "not YAML"),
    ("hosts: {}\n# \x07\n", "2:3", "not YAML: it contains an unprintable character"),
    ("password: x\n", "1:1", "`password:` is never read"),
    ("? [a]\n: b\n", "1:3", "expected a string, found a list"),
    ("<<: {hosts: {}}\n", "1:1", '"<<" merges mappings in YAML, which is not supported'),
]


@pytest.mark.parametrize("text, place, says", WHOLE)
def test_a_file_that_is_wrong_as_a_whole(text, place, says):
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert caught.value.message.startswith(f"/work/clusterfn.yml:{place}: ")
    assert says in str(caught.value) and "hunter2" not in str(caught.value)


def test_bytes_that_are_not_utf8_are_reported():
    with pytest.raises(ConfigError, match=r":2:4: this byte is not UTF-8"):
        config_file.parse(b"a: b\nb: \xff\n", Path("/work/clusterfn.yml"))


def test_a_file_that_is_too_large_is_refused_before_it_is_read_whole(tmp_path):
    (tmp_path / "clusterfn.yml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="too large"):
        config_file.read(tmp_path / "clusterfn.yml")


def test_the_offending_line_is_shown():
    with pytest.raises(ConfigError) as caught:
        host("scheduler: bare\nroot: work  # here")
    assert caught.value.evidence == ("root: work  # here",)


def test_a_bom_and_windows_line_ends_are_read():
    got = config_file.parse(
        b"\xef\xbb\xbfhosts:\r\n  a:\r\n    scheduler: bare\r\n    setup: |\r\n      x\r\n", Path("x")
    )
    assert got.hosts["a"].setup == ("x",)


WORDS = ["hosts", "a", "scheduler", "slurm", "bare", ":", ": ", "\n", "\n  ", "\n    ", "{", "}", "[", "]", "-", "- ",
         "'", '"', "&x", "*x", "!", "!!int", "|", ">", "?", "#", ",", "%", "@", "`", "\t", "no", "1:30", "010", "null",
         "\x00", "\x85", "\u2028", "\ufeff", "\ud800", "\\U", "\\x", "FFFFFFFF", "---", "...",
         "<<", "~", "é"]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join) | st.text(max_size=60))
def test_nothing_but_configerror_comes_out_of_any_text(text):
    try:
        parsed(text)
    except ConfigError as error:
        assert "clusterfn.yml:" in error.message


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_nothing_but_configerror_comes_out_of_any_bytes(data):
    try:
        config_file.parse(data, Path("clusterfn.yml"))
    except ConfigError as error:
        assert "clusterfn.yml:" in error.message


KEYS = st.sampled_from(sorted(HOST_KEYS))
VALUES = st.sampled_from(WORDS) | st.sampled_from(
    ["2h", "4GB", "7", "$X/y", "{a: b}", "[a, 1]", "true", "2024-01-01", "1e9", ".inf"]
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_no_value_of_any_key_brings_out_anything_else(keys):
    try:
        host("\n".join(f"{key}: {value}" for key, value in keys.items()))
    except ConfigError as error:
        assert "clusterfn.yml:" in error.message


def test_yaml_is_not_imported_with_the_library():
    import subprocess
    import sys

    code = "import sys, clusterfn.config.config_file; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_fact_of_a_host_can_be_configured():
    read = {key.field for key in HOST_KEYS.values()}
    of_making = {field.partition(".")[2] for field in read if field.startswith("making.")}
    assert {field.partition(".")[0] for field in read} == set(Host._fields) - {"name", "source"}
    of_cuda = {"driver", "capabilities"}
    assert of_making - {"cuda"} | of_cuda == set(EnvironmentSettings._fields)


@pytest.mark.parametrize("text", ['"3.11"', "Host", "./python3", "/usr/bin/", "uv"])
def test_what_is_no_source_of_python_is_refused(text):
    with pytest.raises(ConfigError, match="does not say where Python comes from"):
        host(f"scheduler: bare\nenv_python: {text}")


@pytest.mark.timeout(120)  # each took minutes, as a pattern for passwords read every word once for each of its colons
@pytest.mark.parametrize("text", [":" * 2**17, "a:" * 2**16, "hosts: {a: {scheduler: " + "b:c" * 40_000 + "}}"])
def test_a_line_of_colons_takes_no_longer_than_others(text):
    with pytest.raises(ConfigError) as caught:
        config_file.parse(text.encode(), Path("clusterfn.yml"))
    assert len(str(caught.value)) < 2000


def test_the_size_limit_is_that_of_the_reference():
    assert yamlfile.LIMIT_BYTES == 128 * 2**10


def test_without_a_file_an_unknown_host_leads_to_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="there is no host 'uni'") as caught:
        config_file.Config({"local": config_file.LOCAL}).resolve("uni")
    assert caught.value.evidence == (f"no clusterfn.yml in {tmp_path} or above",)
    assert "clusterfn init ADDRESS" in caught.value.hint and "$CLUSTERFN_CONFIG" in caught.value.hint


def test_the_hosts_that_exist_are_evidence_and_not_advice():
    known = parsed("hosts: {gpu: {scheduler: bare}, hpc: {scheduler: slurm}}\n")

    with pytest.raises(ConfigError, match="there is no host 'hcp'; did you mean hpc") as caught:
        known.resolve("hcp")
    assert caught.value.evidence == (f"{known.title} describes the hosts gpu, hpc",)
    assert caught.value.hint == f"choose one of them or local, or add hcp to {known.title}"


@pytest.mark.parametrize(
    "text",
    [
        TWO,
        'hosts: {a: {scheduler: bare, setup: ["it\'s", \'so "far"\']}}  # flow\n',
        "hosts:\n  a:\n    setup: |\n      one\n       two\n\n    python: >-\n      folded\n      line\n",
        '\ufeffh:\n  \u00e4\u20ac:\n    a: "\\u00e9"\n    c: 007\n    x: ~\n    y: 1_000\n    z: 12:30\n    w: yes\n',
        "---\nhosts: !!str x\n...\n",
        'a: ""\nb: \'\'\nc: \nd: "1"\ne: 1\n? f\n: g\n- h',
    ],
    ids=["block", "flow", "literal", "scalars", "markers", "quotes"],
)
def test_the_file_means_the_same_without_the_faster_reader(text, monkeypatch):
    import yaml

    assert yaml.__with_libyaml__

    def read():
        try:
            return yamlfile.parse(text.encode(), "clusterfn.yml")
        except ConfigError as error:
            return str(error), error.evidence, error.hint

    fast = read()
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert read() == fast
