"""clusterfn.yml: what it may say, and how each mistake is told."""

from pathlib import Path

import pytest

from clusterfn.config import config_file, yamlfile
from clusterfn.config.environment_kinds import Notify
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
        (TWO, "a", "a", "a", "$CLUSTERFN_HOST=a"),
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


def test_every_key_becomes_its_fact():
    got = host(
        "scheduler: slurm\naddress: ada@hpc.example.org:2222\ntransport: openssh\nssh_config: ssh/config\n"
        'root: $SCRATCH/x y\npython: /usr/bin/python3\nenvironment: "conda:torch"\n'
        "defaults: {cores: 4, memory: 16GB, gpus: 2, time: 02:00:00, gpu_memory: 24GB, gpu_type: a100}\n"
        "setup: |\n  if true; then\n    A=1\n  fi\n"
        "modules: [gcc/12, cuda]\nprolog: [a, b]\nenv: {A: 4, B: 'no', C: 1.50, D: '${now}'}\nslurm: {account: x}\n"
        "gpu_option: gpus\nmemory_as: mem-per-cpu\n"
        "poll_floor: 5s\nkeep: 36h\nlogin_ttl: 1d"
    )
    assert got == Host(
        name="a", address="ada@hpc.example.org:2222", scheduler="slurm", source="/work/clusterfn.yml:2",
        transport="openssh", ssh_config="/work/ssh/config", root="$SCRATCH/x y", python="/usr/bin/python3",
        environment="conda:torch", defaults=Resources(4, 16 * 2**30, 2, 7200.0, 24 * 2**30, "a100"),
        setup=("if true; then", "  A=1", "fi"), modules=("gcc/12", "cuda"), prolog=("a", "b"),
        env={"A": "4", "B": "no", "C": "1.50", "D": "${now}"}, scheduler_options={"account": "x"}, gpu_option="gpus",
        memory_as="mem-per-cpu", poll_floor_s=5.0, keep_days=1.5, login_ttl_s=86400.0,
    )  # fmt: skip


MAKING = "env_root: /group/x\nfetch_on: client\nbuild_on: node\npurge_days: 30d\n"
FILES = {"environment.yml": "/work/environment.yml", "envs/a.yaml": "/work/envs/a.yaml", "/x/a.yml": "/x/a.yml"}
TAKEN = [  # what stands below `a:`, a field of the host, and its value
    ("scheduler: bare\nspare: off", "spare", False), ("scheduler: bare\nspare: no", "spare", False),
    ("scheduler: local\nspare: on", "spare", True), ("scheduler: bare\ncompress: true", "compress", True),
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
        root="/group/x", fetch_on="client", build_on="node", purge_days=30)),
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


def test_bytes_that_are_not_utf8_are_reported():
    with pytest.raises(ConfigError, match=":2: the file is not text in UTF-8"):
        config_file.parse(b"a: b\nb: \xff\n", Path("/work/clusterfn.yml"))


def test_a_file_that_is_too_large_is_refused_before_it_is_read_whole(tmp_path):
    (tmp_path / "clusterfn.yml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="too large"):
        config_file.read(tmp_path / "clusterfn.yml")


def test_a_bom_and_windows_line_ends_are_read():
    got = config_file.parse(
        b"\xef\xbb\xbfhosts:\r\n  a:\r\n    scheduler: bare\r\n    setup: |\r\n      x\r\n", Path("x")
    )
    assert got.hosts["a"].setup == ("x",)


def test_yaml_is_not_imported_with_the_library():
    import subprocess
    import sys

    code = "import sys, clusterfn.config.config_file; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_fact_of_a_host_can_be_configured():
    read = {key.field for key in HOST_KEYS.values()}
    of_making = {field.partition(".")[2] for field in read if field.startswith("making.")}
    assert {field.partition(".")[0] for field in read} == set(Host._fields) - {"name", "source"}
    assert of_making == set(EnvironmentSettings._fields)


@pytest.mark.parametrize("text", ['"3.11"', "Host", "./python3", "/usr/bin/", "python2.7", "-c"])
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


def test_a_host_tells_only_of_long_jobs_unless_it_says_after():
    assert host("scheduler: bare\nnotify: touch x").notify == Notify("touch x", after_s=600.0)
    assert host("scheduler: bare\nnotify:\n  command: touch x\n  after: 1s").notify == Notify("touch x", after_s=1.0)


LAB = TWO + "  lab: {any: [a, b]}\n"


@pytest.mark.parametrize(("name", "means"), [("lab", "ab"), ("b,lab", "ba"), ("b", "b"), (None, "ab")])
def test_a_list_means_its_hosts_in_their_order(name, means, monkeypatch):
    monkeypatch.setenv("CLUSTERFN_HOST", "")
    config = parsed("default_host: lab\n" + LAB)

    assert [host.name for host in config.hosts_named(name)[0]] == list(means)
    assert config.named == ("a", "b") and config.names == ["local", "a", "b", "lab"]
    if len(means) > 1:
        with pytest.raises(ConfigError, match="this needs one host, and there are several: "):
            config.resolve(name)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{any: [a, c]}", 'there is no host "c"'),
        ("{any: [a], scheduler: bare}", 'unknown key "scheduler"'),
        ("{any: a}", "expected a list of hosts"),
        ("{any: []}", "expected a list of hosts"),
        ("{any: [lab]}", 'there is no host "lab"'),
    ],
)
def test_a_wrong_list_is_named(entry, problem):
    with pytest.raises(ConfigError, match=problem):
        parsed(TWO + f"  lab: {entry}\n")
