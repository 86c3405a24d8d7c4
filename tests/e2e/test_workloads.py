"""What people run: search with FAISS and spaCy in one environment from PyPI, and agents of sb3-contrib in several
processes. docs/decisions/0018 says what stands in for weights that are downloaded when they are first used."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys

import pytest

from tests.e2e.conftest import MINOR, give_to

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def project(lab, hosts, channel, tmp_path, monkeypatch):
    """A folder with an environment.yml of conda's Python and wheels of PyPI, and an empty root of environments."""
    root = lab.home("bash") / f"workloads-{secrets.token_hex(4)}"
    root.mkdir(mode=0o700)
    give_to("cfbash", root)
    wheels = "".join(f"    - {name}\n" for name in ("faiss-cpu", "spacy"))
    text = f"channels: [{channel.url}, nodefaults]\ndependencies:\n  - python={MINOR}\n  - pip:\n{wheels}"
    (tmp_path / "environment.yml").write_text(text)
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, f"env_root: {root}", ("tensor01",))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    yield tmp_path
    shutil.rmtree(root, ignore_errors=True)


def made_once(folder, make):
    """Something of the lab's environments, which stays with the lab."""
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        make(part)
        subprocess.run(["chmod", "-R", "a+rX", str(part)], check=True)
        part.rename(folder)
    return folder


def pip(python, *words):
    done = subprocess.run([str(python), "-m", "pip", "install", "-q", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def with_faiss(lab, monkeypatch):
    """FAISS for the script that calls, in a folder that is named as that of packages: they do not travel."""
    folder = lab.root / "envs" / f"faiss-{MINOR}" / "site-packages"
    made_once(folder.parent, lambda part: pip(sys.executable, "--target", str(part / folder.name), "faiss-cpu"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)])))


SEARCH = """
import json
import faiss
import numpy
from clusterfn import cluster

TEXTS = ["Ada Lovelace wrote to Charles Babbage in London.", "FAISS was made in Paris by Meta.", "Nobody is here."]
PLACES = [{"label": "GPE", "pattern": "London"}, {"label": "GPE", "pattern": "Paris"}]
PEOPLE = [{"label": "PERSON", "pattern": [{"TEXT": "Ada"}, {"TEXT": "Lovelace"}]}]

@cluster(host="tensor01", environment="environment.yml", memory="2GB")
def understand(texts, patterns):
    import faiss, numpy, spacy
    reader = spacy.blank("en")
    reader.add_pipe("entity_ruler").add_patterns(patterns)
    documents = list(reader.pipe(texts))
    words = sorted({token.lower_ for document in documents for token in document})
    counts = numpy.array([[sum(t.lower_ == word for t in each) for word in words] for each in documents], "float32")
    faiss.normalize_L2(counts)
    index = faiss.IndexFlatIP(len(words))
    index.add(counts)
    return index, [[(e.text, e.label_) for e in each.ents] for each in documents]

index, entities = understand(TEXTS, PLACES + PEOPLE)
near = index.search(index.reconstruct(1).reshape(1, -1), 1)
print(json.dumps([type(index).__name__, index.ntotal, entities, int(near[1][0, 0]), round(float(near[0][0, 0]), 3)]))
"""


def test_an_index_and_entities_come_from_one_environment_of_wheels(project, with_faiss, run_script):
    kind, count, entities, nearest, likeness = run_script(SEARCH, timeout_s=600)

    assert (kind, count, nearest, likeness) == ("IndexFlatIP", 3, 1, 1.0)
    assert entities == [[["Ada Lovelace", "PERSON"], ["London", "GPE"]], [["Paris", "GPE"]], []]
    lock = (project / "environment.conda-lock.yml").read_text()
    assert "faiss-cpu" in lock or "faiss_cpu" in lock


@pytest.fixture
def agents(lab):
    """The interpreter of an environment with sb3-contrib, beside the PyTorch that the lab has."""

    def make(part):
        torch = lab.torch_python
        subprocess.run([str(torch), "-m", "venv", str(part)], check=True)
        (site,) = part.glob("lib/python3.*/site-packages")
        (there,) = torch.parents[1].glob("lib/python3.*/site-packages")
        (site / "torch.pth").write_text(f"{there}\n")
        pip(part / "bin" / "python", "sb3-contrib")

    return made_once(lab.root / "envs" / "agents", make) / "bin" / "python"


COMPARE = """
import json, sys
from pathlib import Path
from clusterfn import File, cluster

@cluster(host="tensor01", outputs=["model.zip"])
def learn(steps):
    from sb3_contrib import RecurrentPPO
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=32, batch_size=32, seed=1, device="cpu")
    model.learn(steps).save("model.zip")
    return model.num_timesteps, play("model.zip", 7)

def play(path, seed):
    import gymnasium, numpy
    from sb3_contrib import RecurrentPPO
    model, world = RecurrentPPO.load(path, device="cpu"), gymnasium.make("CartPole-v1")
    seen, state, begins, actions = world.reset(seed=seed)[0], None, numpy.ones(1, bool), []
    for _ in range(20):
        action, state = model.predict(seen, state=state, episode_start=begins, deterministic=True)
        seen, _, over, cut, _ = world.step(action)
        begins = numpy.array([over or cut])
        actions.append(int(action))
        if begins[0]:
            seen = world.reset(seed=seed)[0]
    return actions

@cluster(host="tensor01")
def compare(paths, seeds):
    import multiprocessing, os
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(play, paths, seeds))

job = learn.submit(64)
steps, played = job.result(300)
(model,) = job.download("model.zip", to=sys.argv[1])
print(json.dumps([steps, played, compare([File(model)] * 3, [7, 7, 8]), Path(model).stat().st_size]))
"""


def test_an_agent_is_trained_saved_and_compared_in_spawned_processes(
    lab, hosts, agents, run_script, tmp_path, monkeypatch
):
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", agents, names=("tensor01",))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    steps, played, compared, size = run_script(COMPARE, str(tmp_path / "models"), timeout_s=600)

    assert steps == 64 and len(played) == 20 and set(played) <= {0, 1} and size > 10_000
    assert compared[0] == compared[1] == played  # the saved model does what it did, in whichever process
    assert len(compared[2]) == 20
