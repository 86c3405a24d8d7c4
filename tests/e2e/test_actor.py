"""Actors of a session: an object on the host that stays, and what a user sees of its calls and its end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterfn import ActorLost, Cancelled, ConfigError, DiskFull, HostDiskFull, KilledBySignal, PayloadError, Session
from tests.fixtures.calls.actor_model import Model, Plain, Ranks, Saved
from tests.processes import command_line
from tests.waiting import until


@pytest.mark.usefixtures("here")
def test_an_actor_keeps_its_object_and_its_calls_behave_as_calls_of_a_session(capfd: pytest.CaptureFixture[str]):
    with Session() as session:
        model = session.actor(Model, "weights.pt")
        assert [model.predict(3), model.predict(number=4)] == [6, 8]
        assert capfd.readouterr().out == "loading weights.pt\npredicting 3\npredicting 4\n"

        jobs = [model.predict.submit(number) for number in range(20)]
        assert [job.result(150) for job in jobs] == [2 * number for number in range(20)]
        assert model.history() == [3, 4, *range(20)], "one after another, in their order"
        assert jobs[7].logs() == "predicting 7\n"
        assert set(jobs[7].usage) == {"wall_s", "cpu_s", "peak_memory_bytes", "gpus"}
        with pytest.raises(ZeroDivisionError, match="of the model"):
            model.fail()
        assert (model.pid(), model(5), asyncio.run(model.later(6))) == (model.pid(), -5, 7)
        assert model.large(2) == bytes(2 << 20)
        assert model.measure(os.urandom(3 << 20)) == 3 << 20, "a large argument goes as files, in the same order"
        assert Path(model.write("note")).name == "work"
        written = model.write.submit("other")
        written.result(150)
        assert {file.name for file in written.files} == {"note", "other"}

        assert model.close() == 23
        assert "saving" in capfd.readouterr().out
        with pytest.raises(ActorLost, match="the actor Model is gone, and its state with it: it was closed"):
            model.predict(1)
        assert model.close() is None
        assert session.call(abs, -1) == 1, "its worker is free again"

        other = session.actor(Model, "y")

    with pytest.raises(ActorLost, match="its session is closed"):
        other.predict(1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        session.actor(Model, "x")


@pytest.mark.usefixtures("here")
def test_an_actor_that_dies_says_so_at_its_call_and_at_each_later_one(tmp_path: Path):
    with Session() as session:
        model = session.actor(Model, "a")
        pid, dies = model.pid(), tmp_path / "dies"
        crashing, waiting = model.spin.submit(str(dies)), model.predict.submit(1)
        until(dies.exists)
        os.kill(pid, signal.SIGSEGV)  # only now: a call that is sent after its end is rejected
        with pytest.raises(KilledBySignal, match="SIGSEGV") as crashed:
            crashing.result(150)
        with pytest.raises(ActorLost, match="gone, and its state with it: .*SIGSEGV"):
            waiting.result(150)
        with pytest.raises(ActorLost, match="SIGSEGV") as later:
            model.predict(2)
        assert "create the actor again with session.actor" in str(crashed.value.hint)
        assert "session.actor(Model, …)" in str(later.value.hint)

        model = session.actor(Model, "b")
        spinning = model.spin.submit(str(tmp_path / "spins"))
        waiting, withdrawn = model.predict.submit(1), model.predict.submit(2)
        until((tmp_path / "spins").exists)
        assert withdrawn.cancel()
        spinning.stop()
        assert session.call(abs, -1) == 1, "the call waits for the worker that the actor leaves"
        assert isinstance(spinning.exception(150), Cancelled)
        assert isinstance(waiting.exception(150), ActorLost)
        assert withdrawn.cancelled()

        with pytest.raises(FileNotFoundError):
            session.actor(Model, "c", fail=True)
        assert session.actor(Model, "d").predict(4) == 8, "its worker is free after each of them"


def has_room(session: Session) -> bool:
    try:
        return session.submit(abs, -1).result(150) == 1
    except ConfigError:
        return False


@pytest.mark.usefixtures("here")
def test_the_worker_of_an_actor_that_dies_between_two_calls_is_free_for_others():
    with Session() as session:
        model = session.actor(Model, "a")
        os.kill(model.pid(), signal.SIGKILL)
        until(lambda: has_room(session))
        with pytest.raises(ActorLost, match="its process was killed by SIGKILL between two calls"):
            model.predict(1)
        with session.actor(Model, "b") as again:
            assert again.predict(1) == 2


@pytest.mark.usefixtures("here")
def test_actors_have_workers_and_what_none_is_left_for_is_rejected():
    with Session(workers=2, cores=2) as session:
        with session.actor(Model, "a") as first:
            assert session.call(abs, -2) == 2, "beside it"
            second = session.actor(Model, "b")
            for rejected in (lambda: session.submit(abs, -1), lambda: session.actor(Model, "c")):
                with pytest.raises(ConfigError, match="all of its 2 workers have actors") as full:
                    rejected()
                assert "model.close()" in str(full.value.hint) and "workers=3" in str(full.value.hint)
            assert (first.predict(1), second.predict(2)) == (2, 4)
            assert first.pid() != second.pid()
        assert session.call(abs, -3) == 3, "the block has closed it"
        del second, full
        gc.collect()
        assert session.call(abs, -5) == 5, "what nothing refers to any more is closed"
        assert [session.actor(Model, "d").predict(1), session.call(abs, -4)] == [2, 4]


@pytest.mark.usefixtures("here")
def test_what_cannot_be_called_is_rejected_before_anything_is_sent():
    with Session() as session:
        with pytest.raises(ConfigError, match=r"session.actor\(\) takes a class, not <built-in function abs>"):
            session.actor(abs, -1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="__init__.. missing 1 required positional argument: 'path'"):
            session.actor(Model)
        assert session.job is None, "nothing was started"
        model = session.actor(Model, "a")
        sent = Path(session.job.folder, "calls")  # type: ignore[union-attr]
        before = sorted(sent.iterdir())
        with pytest.raises(AttributeError, match="Model has no method predct; did you mean predict?"):
            model.predct(1)
        for name in ("scale", "count"):
            with pytest.raises(AttributeError, match=f"{name} of Model is not a method.*add a method that returns it"):
                getattr(model, name)
        with pytest.raises(AttributeError, match="Model has no method seen.*add a method that returns it"):
            _ = model.seen
        with pytest.raises(AttributeError, match="set by its methods"):
            model.scale = 3
        with pytest.raises(ConfigError, match=r"Model.stream is a generator function"):
            model.stream()
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
            model.predict()
        with pytest.raises(PayloadError, match=r"args\[0\].*lock"):
            model.predict(__import__("threading").Lock())
        with pytest.raises(PayloadError, match="this is an actor itself"):
            model.predict(model)
        assert sorted(sent.iterdir()) == before
        assert "predict" in dir(model) and "close" in dir(model)
        assert repr(model) == "<Actor Model on here>"


def test_an_actor_ends_with_its_session_and_is_not_constructed_again_in_the_next(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    with Session() as another:
        another.actor(Model, "whose module the host has from now on")
    session = Session(idle="4s")
    model = session.actor(Model, "a")
    first = session.job
    assert first is not None and first.result(150)["why"] == "idle"

    with pytest.raises(ActorLost, match=r"its session has ended \(it was idle\)"):
        model.predict(1)
    assert session.call(abs, -1) == 1
    assert session.job is not first
    with pytest.raises(ActorLost, match="its session has ended"):
        model.predict(1)
    session.stop()
    until(session.job.done)  # type: ignore[union-attr]


def test_a_full_disk_costs_an_actor_only_the_calls_that_meet_it(small: Path):
    with Session() as session:
        model = session.actor(Model, "a")
        assert model.predict(1) == 2
        with pytest.raises(DiskFull):
            model.fill(str(small / "filler"))
        with pytest.raises(HostDiskFull):
            model.predict(2)
        (small / "filler").unlink()
        assert model.history() == [1]


@pytest.mark.usefixtures("here")
def test_a_closing_that_could_only_fail_is_rejected_and_the_actor_stays():
    with Session(workers=2, cores=2) as session:
        saved = session.actor(Saved)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
            saved.close()
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"), saved:
            pass
        with pytest.raises(ZeroDivisionError), saved:
            raise ZeroDivisionError
        assert saved.close() is None, "the error of the block is raised, and the actor is gone"


@pytest.mark.usefixtures("here")
def test_who_leaves_the_block_of_an_actor_by_ctrl_c_waits_for_none_of_its_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gate, words = tmp_path / "gate", "waiting for the worker of the actor Plain, which is ending"
    said: list[str] = []
    late = threading.Timer(100, gate.touch)  # else nothing would end the call, and the session waits for it
    late.daemon = True
    late.start()
    stderr = SimpleNamespace(write=lambda text: words in text and (said.append(text), gate.touch()), flush=lambda: None)
    monkeypatch.setattr(sys, "stderr", stderr)
    with Session() as session:
        with pytest.raises(KeyboardInterrupt), session.actor(Plain) as plain:
            waiting = plain.wait_for.submit(str(gate))
            raise KeyboardInterrupt
        assert not waiting.done()
        later = session.actor(Plain)
        assert said and waiting.result(150) is None
    assert later.close() is None, "its session has ended it"


@pytest.mark.usefixtures("here")
def test_a_process_that_a_method_leaves_stays_as_long_as_the_actor():
    with Session() as session, session.actor(Model, "x") as model:
        detached = model.detach.submit()
        pid = detached.result(150)
        later = model.pid.submit()
        later.result(150)
        assert (detached.notes, later.notes) == ((), ())
        until(lambda: command_line(pid)[:1] == [b"sleep"])  # a fork of the shell before
        model.close()
        until(lambda: not command_line(pid))


@pytest.mark.usefixtures("here")
def test_the_program_of_an_actor_runs_again_only_to_construct_it(tmp_path: Path):
    path = tmp_path / "constructed"
    with Session() as session:
        ranks = session.actor(Ranks, str(path))
        assert ranks.constructed() == (0, ""), "a process that starts the program again finds the modules of its class"
        assert path.read_text() == "constructed\n" * 2

        status, said = ranks.fit()
    assert status == 1
    assert said.startswith("clusterfn: a method of an actor starts its own program") and "session.call(f, …)" in said
    assert path.read_text() == "constructed\n" * 2, "it is not constructed again"
