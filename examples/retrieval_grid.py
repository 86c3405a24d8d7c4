"""A grid of 135 retrieval configurations, of which a seeded sample is tested: FAISS indexes, rerankers, and recall.

    python examples/retrieval_grid.py --environment "python:~/envs/search/bin/python" --max-configs 3

Any host of clusterfn.yml will do (`--host tensor01`), and this machine without one. The environment needs numpy and
faiss-cpu; this side needs neither. An index that one configuration has built is read by the others.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import clusterfn
from clusterfn import cluster

GRID = {
    "embedder": ["e5", "bge", "gte", "minilm", "splade"],
    "index": ["flat", "ivf", "hnsw"],
    "pipeline": ["reranker_only", "reranker_then_splade", "vector_only"],
    "k": [1, 5, 10],
}
DIMENSIONS = {"e5": 64, "bge": 48, "gte": 32, "minilm": 16, "splade": 96}
DOCUMENTS, QUERIES, TOPICS = 2000, 50, 128


def texts() -> Any:
    """Documents and queries as their topics would be weighed by an ideal model: query n belongs to document n."""
    import numpy

    chance = numpy.random.default_rng(7)
    documents = chance.gamma(0.3, size=(DOCUMENTS, TOPICS)).astype("float32")
    noise = chance.gamma(0.3, size=(QUERIES, TOPICS)).astype("float32")
    return documents, documents[:QUERIES] + 1.5 * noise


def embed(weights: Any, embedder: str) -> Any:
    """Vectors of length one, with as many numbers as the embedder has; fewer tell less."""
    import numpy

    chance = numpy.random.default_rng(DIMENSIONS[embedder])
    vectors = weights @ chance.normal(size=(TOPICS, DIMENSIONS[embedder])).astype("float32")
    return numpy.ascontiguousarray(vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True))


def index_of(documents: Any, embedder: str, kind: str) -> Any:
    """A FAISS index over all documents: from the disk if a configuration has built it before."""
    import faiss

    folder = Path(
        os.path.expanduser(os.environ.get("INDEXES", ""))
        or Path(tempfile.gettempdir(), f"retrieval-grid-{os.getuid()}")
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{embedder}-{kind}.faiss"
    if path.exists():
        print(f"reading {path.name}")
        return faiss.read_index(str(path))
    print(f"building {path.name}")
    vectors = embed(documents, embedder)
    index = faiss.index_factory(vectors.shape[1], {"flat": "Flat", "ivf": "IVF16,Flat", "hnsw": "HNSW16"}[kind])
    index.train(vectors)
    index.add(vectors)
    part = path.with_suffix(f".{os.getpid()}")
    faiss.write_index(index, str(part))
    part.replace(path)  # whole, or not there: others may be reading
    return index


def reranked(candidates: Any, documents: Any, query: Any, with_splade: bool) -> Any:
    """Candidates in the order of what a better and slower model thinks of them."""
    import numpy

    chosen = documents[candidates]
    worth = chosen @ query / numpy.linalg.norm(chosen, axis=1)
    if with_splade:  # and by the few topics that weigh most, as sparse vectors do
        worth = worth + chosen[:, numpy.argsort(query)[-12:]].sum(axis=1) / 10
    return candidates[numpy.argsort(-worth)]


@cluster(cores=1, memory="1GB", time="5min")
def evaluate(embedder: str, index: str, pipeline: str, k: int) -> dict[str, Any]:
    """Recall of one configuration: how many queries find their own document among the first k."""
    documents, queries = texts()
    wanted = k if pipeline == "vector_only" else 10 * k
    _, found = index_of(documents, embedder, index).search(embed(queries, embedder), wanted)
    hits = []
    for number, candidates in enumerate(found):
        candidates = candidates[candidates >= 0]
        if pipeline != "vector_only":
            candidates = reranked(candidates, documents, queries[number], pipeline == "reranker_then_splade")
        hits.append(float(number in candidates[:k]))
    return {"score": sum(hits) / len(hits)}


def main() -> None:
    """Test some of the 135 and print the best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="a host of clusterfn.yml")
    parser.add_argument("--environment", help='with numpy and faiss-cpu, such as "conda:search"')
    parser.add_argument("--indexes", help="a folder there for the indexes, to be used again")
    parser.add_argument("--max-configs", type=int, help="how many of the 135")
    parser.add_argument("--seed", type=int, help="which of them")
    parser.add_argument("--resume", help="the id of the same sweep, which was interrupted")
    asked = parser.parse_args()
    where = {name: getattr(asked, name) for name in ("host", "environment") if getattr(asked, name)}

    function = evaluate.with_options(**where, env={"INDEXES": asked.indexes or ""})
    result = clusterfn.sweep(function, GRID, max_configs=asked.max_configs, seed=asked.seed, resume=asked.resume)
    print(f"best: {result.best.name} (score {result.best.score:.3f}) {result.best.config}")


if __name__ == "__main__":
    main()
