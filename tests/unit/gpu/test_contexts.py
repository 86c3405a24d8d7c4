"""What holds GPU memory and gives it back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import weakref

import pytest

from clusterfn import ConfigError, gpu
from tests.fakes import torch as fake_torch

pytest_plugins = ["tests.fakes.gpu"]
pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.fixture
def torch(monkeypatch):
    """A PyTorch that this process uses CUDA by."""
    found = fake_torch.with_cuda()
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


class Model:
    """Counts how often it was closed, in each way."""

    def __init__(self):
        self.closed: list[str] = []
        self.me = self  # a cycle: only the collector frees it

    def close(self):
        self.closed.append("close")

    async def aclose(self):
        await asyncio.sleep(0)
        self.closed.append("aclose")

    def fail(self):
        self.closed.append("fail")
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    async def afail(self):
        self.fail()


async def in_async_block(context, *, error=None):
    async with context as model:
        if error is not None:
            raise error
        return model


# Memory is given back on success and on failure


async def in_plain_block(context, *, error=None):
    with context as model:
        if error is not None:
            raise error
        return model


BLOCKS = [
    (in_plain_block, gpu.gpu_memory_context, [None, ValueError("bad"), KeyboardInterrupt(), SystemExit(3)]),
    (in_async_block, gpu.async_gpu_memory_context, [None, ValueError("bad"), asyncio.CancelledError()]),
]


@pytest.mark.parametrize(
    ("block", "context", "error"),
    [(*each, error) for *each, errors in BLOCKS for error in errors],
    ids=lambda given: getattr(given, "__name__", None) or repr(given),
)
def test_memory_is_given_back_once_after_success_and_failure(torch, block, context, error):
    with pytest.raises(type(error)) if error else contextlib.nullcontext():
        asyncio.run(block(context(), error=error))

    assert torch.cuda.asked == ["empty_cache"]


def test_what_nothing_refers_to_is_collected_before(torch, monkeypatch):
    found = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append(reference()))
    with gpu.gpu_memory_context():
        model = Model()
        reference = weakref.ref(model)
        del model

    assert found == [None]


def test_giving_back_never_hides_the_error_of_the_block(torch, logged):
    torch.cuda.fails = RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(ValueError, match="bad"), gpu.gpu_memory_context():
        raise ValueError("bad")

    assert "releasing GPU memory failed" in logged.text


def test_it_is_a_decorator_too(torch):
    @gpu.gpu_memory_context()
    def score():
        return 0.5

    assert (score(), score()) == (0.5, 0.5)
    assert torch.cuda.asked == ["empty_cache"] * 2


@pytest.mark.parametrize("installed", ["nothing", "without CUDA", "not used"])
def test_without_cuda_there_is_nothing_to_give_back(monkeypatch, logged, installed):
    kinds = {"without CUDA": fake_torch.without_cuda(), "not used": fake_torch.with_cuda(initialised=False)}
    if installed in kinds:
        monkeypatch.setitem(sys.modules, "torch", kinds[installed])

    with gpu.gpu_memory_context():
        pass

    assert logged.records == []


# Models are cleaned up once


@pytest.mark.parametrize("error", [None, ValueError("bad"), KeyboardInterrupt()], ids=repr)
def test_a_model_is_closed_once_and_then_its_memory_given_back(torch, monkeypatch, error):
    model = Model()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: model.closed.append("memory"))

    if error is None:
        with gpu.sync_model_context(lambda: model) as same:
            assert same is model and model.closed == []
    else:
        with pytest.raises(type(error)), gpu.sync_model_context(lambda: model):
            raise error

    assert model.closed == ["close", "memory"]


@pytest.mark.parametrize("error", [None, ValueError("bad"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("method", ["close", "aclose"])
def test_the_same_with_async_whatever_the_method_is(torch, error, method):
    model = Model()

    async def create():
        return model

    for make in (create, lambda: model):
        model.closed.clear()
        if error is None:
            assert asyncio.run(in_async_block(gpu.model_context(make, method))) is model
        else:
            with pytest.raises(type(error)):
                asyncio.run(in_async_block(gpu.model_context(make, method), error=error))
        assert model.closed == [method]

    assert torch.cuda.asked == ["empty_cache"] * 2


@pytest.mark.parametrize("method", ["fail", "afail"])
def test_a_clean_up_that_fails_costs_no_result(torch, logged, method):
    model = Model()

    assert asyncio.run(in_async_block(gpu.model_context(lambda: model, method))) is model
    if method == "fail":
        with gpu.sync_model_context(lambda: model, method):
            pass

    assert "cleaning up Model failed" in logged.text
    assert "cudaErrorIllegalAddress" in logged.text


def test_a_model_without_close_is_only_let_go_but_any_other_name_must_be_there(torch):
    with gpu.sync_model_context(list) as model:
        model.append(1)
    with gpu.sync_model_context(Model, cleanup_method=None) as model:
        pass
    assert model.closed == []

    with pytest.raises(ConfigError, match="list has no method 'unload'"), gpu.sync_model_context(list, "unload"):
        raise AssertionError("the block was entered")
    with pytest.raises(ConfigError, match="list has no method 'unload'"):
        asyncio.run(in_async_block(gpu.model_context(list, "unload")))


def test_coroutines_belong_to_the_async_context():
    async def create():
        return Model()

    with pytest.raises(ConfigError, match="a coroutine creates or frees"), gpu.sync_model_context(Model, "aclose"):
        raise AssertionError("the block was entered")
    made = create()
    with pytest.raises(ConfigError, match="a coroutine creates or frees"), gpu.sync_model_context(lambda: made):
        raise AssertionError("the block was entered")
    made.close()


def test_a_model_that_cannot_be_made_raises_as_itself(torch):
    def create():
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    for run in (
        lambda: gpu.sync_model_context(create).__enter__(),
        lambda: asyncio.run(in_async_block(gpu.model_context(create))),
    ):
        with pytest.raises(RuntimeError, match="Tried to allocate"):
            run()
    assert torch.cuda.asked == ["empty_cache"] * 2


# Nothing is left behind


def test_tasks_side_by_side_have_blocks_of_their_own(torch):
    models = [Model() for _ in range(10)]

    async def one(model):
        async with gpu.model_context(lambda: model, "aclose"):
            await asyncio.sleep(0)
            if model is models[3]:
                raise ValueError("bad")

    async def all_of_them():
        return await asyncio.gather(*map(one, models), return_exceptions=True)

    results = asyncio.run(all_of_them())

    assert [type(each) for each in results].count(ValueError) == 1
    assert [model.closed for model in models] == [["aclose"]] * 10


# What succeeds costs nothing but the call


def test_what_succeeds_asks_nobody(torch, monkeypatch, logged):
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr("clusterfn.gpu.guards.classify", None)
    monkeypatch.setattr(gc, "collect", None)

    for _ in range(100):
        assert gpu.safe_cuda_operation(lambda: 1.0, "measuring") == 1.0
        with gpu.cuda_error_context("scoring"):
            pass

    assert (torch.cuda.asked, logged.records) == ([], [])
