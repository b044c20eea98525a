import os
import signal
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import ddp_script
import pytest
import torch
from ddp_script import PAD, RECIPE, adamw, batch_at, loss, rate, reader
from torch import distributed, nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course import checkpoint, loop
from mha_course.loop import Recipe, Stopped, train


def run(model, optimizer=None, recipe=RECIPE, data=batch_at, measure=loss, **settings):
    optimizer = adamw(model) if optimizer is None else optimizer
    return train(model, optimizer, data, measure, recipe, **{"progress": False, "learning_rate": rate, **settings})


def stopping_in(step, number=signal.SIGINT):
    def batches(now, index):
        if (now, index) == (step, 1):
            os.kill(os.getpid(), number)
        return batch_at(now, index)

    return batches


def failing_in(step):
    def batches(now, index):
        if now == step:
            raise RuntimeError("the data end here")
        return batch_at(now, index)

    return batches


def fixed_batch_at(step, index):
    with torch.random.fork_rng([]):
        torch.manual_seed(100 * step + index)
        return batch_at(step, index)


def assert_same(model, other):
    for (name, tensor), (other_name, other_tensor) in zip(
        model.state_dict().items(), other.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(tensor, other_tensor)


@pytest.mark.parametrize("clip_norm", [None, 0.3, 1000.0])
@pytest.mark.parametrize("schedule", [None, rate])
def test_a_step_is_one_of_pytorchs_own_on_all_micro_batches_as_one_batch(clip_norm, schedule):
    model, theirs = reader(dropout=0.0), reader(dropout=0.0)
    recipe = replace(RECIPE, clip_norm=clip_norm)
    history = run(model, recipe=recipe, data=fixed_batch_at, learning_rate=schedule)
    optimizer = adamw(theirs)
    for step in range(11):
        batches = [fixed_batch_at(step, index) for index in range(3)]
        tokens, labels = (torch.cat([batch[name] for batch in batches]) for name in ("tokens", "labels"))
        right = F.cross_entropy(theirs(tokens).flatten(0, 1), labels.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        right.backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm or 1e9)
        optimizer.param_groups[0]["lr"] = rate(step) if schedule else 0.05
        optimizer.step()
        assert history[step].step == step
        assert history[step].learning_rate == optimizer.param_groups[0]["lr"]
        assert history[step].tokens == (labels != PAD).sum()
        assert_close(history[step].loss, right.item())
        assert_close(history[step].gradient_norm, norm.item())
    assert_close(model.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("stop", [0, 3, 4])
def test_a_run_that_was_stopped_and_resumed_gives_the_same_numbers_bit_for_bit(tmp_path, stop):
    whole, part, rest = reader(), reader(), reader()
    optimizers = adamw(whole), adamw(part), adamw(rest)
    history = run(whole, optimizers[0])
    with pytest.raises(Stopped, match=rf"stopped after {stop + 1} of 11 steps; resume goes on from the checkpoint in"):
        run(part, optimizers[1], data=stopping_in(stop), folder=tmp_path)
    torch.manual_seed(99)  # whoever resumes has other random numbers
    nn.init.zeros_(rest.linear.weight)
    assert run(rest, optimizers[2], folder=tmp_path, resume=True) == history
    assert_same(whole, rest)
    first, last = (optimizer.state_dict()["state"] for optimizer in (optimizers[0], optimizers[2]))
    assert all(torch.equal(first[index][name], last[index][name]) for index in first for name in first[index])


def sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr, momentum=0.9, nesterov=True)


OPTIMIZERS = [sgd, torch.optim.Adam, torch.optim.NAdam, torch.optim.Adagrad, torch.optim.Adafactor, torch.optim.RMSprop]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_that_broke_off_goes_on_from_its_last_checkpoint_with_any_optimizer(tmp_path, optimizer):
    whole, part, rest = reader(), reader(), reader()
    history = run(whole, optimizer(whole.parameters(), lr=0.05), learning_rate=None)
    with pytest.raises(RuntimeError, match="the data end here"):
        run(part, optimizer(part.parameters(), lr=0.05), data=failing_in(7), learning_rate=None, folder=tmp_path)
    seen = []

    def batches(step, index):
        seen.append(step)
        return batch_at(step, index)

    again = run(
        rest, optimizer(rest.parameters(), lr=0.05), data=batches, learning_rate=None, folder=tmp_path, resume=True
    )
    assert again == history
    assert min(seen) == 6  # saved after steps 1, 3 and 5
    assert_same(whole, rest)


def test_a_finished_run_can_be_made_longer_and_is_left_alone_if_it_is_not(tmp_path):
    whole, longer = reader(), reader()
    history = run(whole)
    run(reader(), recipe=replace(RECIPE, steps=5), folder=tmp_path)
    other = replace(RECIPE, save_every=3, measure_every=4)
    assert run(longer, recipe=other, folder=tmp_path, resume=True) == history
    assert_same(whole, longer)
    again = reader()
    assert run(again, data=failing_in(0), folder=tmp_path, resume=True) == history
    assert_same(whole, again)


def test_tied_weights_are_saved_and_stay_tied(tmp_path):
    def tied():
        model = reader()
        model.linear.weight = model.embedding.weight
        return model

    whole, rest = tied(), tied()
    run(whole)
    run(tied(), recipe=replace(RECIPE, steps=5), folder=tmp_path)
    run(rest, folder=tmp_path, resume=True)
    assert rest.linear.weight is rest.embedding.weight
    assert_same(whole, rest)


CHANGES = [
    ({"recipe": replace(RECIPE, seed=6)}, "seed is 5, and now it is 6"),
    ({"recipe": replace(RECIPE, micro_batches=2)}, "micro_batches is 3, and now it is 2"),
    ({"recipe": replace(RECIPE, clip_norm=None)}, "clip_norm is 0.7, and now it is None"),
    ({"recipe": replace(RECIPE, about={"vocabulary": 17})}, "about vocabulary is 13, and now it is 17"),
    ({"recipe": replace(RECIPE, about={})}, "about vocabulary is 13, and now it is missing"),
    ({"optimizer": {"weight_decay": 0.2}}, "weight_decay of parameter group 0 is 0.1, and now it is 0.2"),
    (
        {"learning_rate": lambda step: rate(step) * (1 + (step == 1))},
        "learning rate of step 1 is 0.025, and now it is 0.05",
    ),
    ({"model": {"width": 5}}, r"embedding.weight is torch.float64 \(13, 6\), and now it is torch.float64 \(13, 5\)"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_checkpoint_of_another_run_is_refused_and_the_model_left_as_it_was(tmp_path, change, said):
    change = dict(change)
    run(reader(), recipe=replace(RECIPE, steps=5), folder=tmp_path)
    model, untouched = (reader(**change.get("model", {})) for _ in range(2))
    change.pop("model", None)
    change["optimizer"] = adamw(model, **change.get("optimizer", {}))
    with pytest.raises(
        ValueError, match=f"a run goes on as it began, but in the checkpoint in .* {said}; change it back"
    ):
        run(model, folder=tmp_path, resume=True, **change)
    assert_same(model, untouched)


def test_another_rate_or_optimizer_is_refused_where_the_optimizer_sets_the_rate(tmp_path):
    run(reader(), recipe=replace(RECIPE, steps=5), learning_rate=None, folder=tmp_path)
    model = reader()
    with pytest.raises(ValueError, match=r"lr of parameter group 0 is 0.05, and now it is 0.01"):
        run(model, adamw(model, lr=0.01), learning_rate=None, folder=tmp_path, resume=True)
    with pytest.raises(ValueError, match="optimizer is AdamW, and now it is Adam"):
        run(model, torch.optim.Adam(model.parameters()), learning_rate=None, folder=tmp_path, resume=True)


def test_a_checkpoint_is_never_overwritten_by_a_run_that_begins(tmp_path):
    run(reader(), recipe=replace(RECIPE, steps=5), folder=tmp_path)
    before = (tmp_path / checkpoint.NAME).read_bytes()
    with pytest.raises(
        ValueError, match=r"a run begins in a folder without a checkpoint, but there is one in .*; resume"
    ):
        run(reader(), folder=tmp_path)
    assert (tmp_path / checkpoint.NAME).read_bytes() == before


def test_resuming_from_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no checkpoint at .*, or begin one without resume"):
        run(reader(), folder=tmp_path, resume=True)
    with pytest.raises(ValueError, match="but no folder was given; name it"):
        run(reader(), resume=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_folder_a_stop_says_that_nothing_is_kept(number):
    with pytest.raises(KeyboardInterrupt, match="stopped after 3 of 11 steps; nothing is kept without a folder"):
        run(reader(), data=stopping_in(2, number))


def test_a_stop_in_the_last_step_is_still_a_stop(tmp_path):
    with pytest.raises(Stopped, match="stopped after 11 of 11 steps"):
        run(reader(), data=stopping_in(10), folder=tmp_path)


def test_the_random_numbers_depend_on_seed_step_and_micro_batch_and_the_callers_stay_as_they_were():
    drawn = {}

    def batches(step, index):
        drawn[step, index] = torch.rand(()).item()
        return batch_at(step, index)

    torch.manual_seed(3)
    right = torch.rand(2)
    torch.manual_seed(3)
    first = torch.rand(())
    run(reader_without_seeding(), data=batches)
    assert torch.equal(torch.stack([first, torch.rand(())]), right)
    assert len(drawn) == len(set(drawn.values())) == 33
    before = dict(drawn)
    run(reader_without_seeding(), data=batches)
    assert drawn == before
    run(reader_without_seeding(), data=batches, recipe=replace(RECIPE, seed=6))
    assert not set(drawn.values()) & set(before.values())


def reader_without_seeding():
    with torch.random.fork_rng([]):
        return reader()


def test_metrics_are_measured_in_evaluation_mode_without_gradients_every_so_often_and_at_the_end():
    states = []

    def metrics(model):
        states.append((model.training, torch.is_grad_enabled()))
        return {"drawn": torch.rand(()), "number": len(states)}

    measured, plain = reader(), reader()
    modes = []

    def data(step, index):
        modes.append(measured.training)
        return batch_at(step, index)

    history = run(measured, recipe=replace(RECIPE, measure_every=4), metrics=metrics, data=data)
    assert [entry.step for entry in history if entry.metrics] == [3, 7, 10]
    assert [entry.metrics.get("number") for entry in history if entry.metrics] == [1.0, 2.0, 3.0]
    assert states == [(False, False)] * 3
    assert modes == [True] * 33
    run(plain)
    assert_same(measured, plain)  # measuring changed nothing


def test_a_loss_that_is_not_finite_stops_the_run_and_the_last_good_checkpoint_is_kept(tmp_path):
    def spoilt(step, index):
        batch = batch_at(step, index)
        return {**batch, "spoilt": (step, index) == (7, 1)}

    def measure(model, batch):
        total, count = loss(model, batch)
        return total * (float("nan") if batch["spoilt"] else 1.0), count

    with pytest.raises(
        FloatingPointError, match=r"the loss is nan in step 7; begin anew with .* \(the last good checkpoint is kept in"
    ):
        run(reader(), data=spoilt, measure=measure, folder=tmp_path)
    good, rest = reader(), reader()
    run(good)
    run(rest, folder=tmp_path, resume=True)
    assert_same(good, rest)


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_reaches_the_parameters():
    def measure(model, batch):
        total, count = loss(model, batch)
        return total + (0.0 * model.linear.bias).sum().sqrt(), count  # the root has no slope at 0

    model, untouched = reader(), reader()
    with pytest.raises(
        FloatingPointError, match="the length of the gradient is nan in step 0; begin anew with a lower"
    ):
        run(model, measure=measure)
    assert_same(model, untouched)


def test_parameters_that_are_not_finite_are_not_saved(tmp_path):
    run(reader(), recipe=replace(RECIPE, steps=4), folder=tmp_path)
    before = (tmp_path / checkpoint.NAME).read_bytes()

    class Careless(torch.optim.AdamW):
        def step(self):
            super().step()
            self.param_groups[0]["params"][1].data[0, 0] = float("inf")

    Careless.__name__ = "AdamW"
    model = reader()
    optimizer = Careless(model.parameters(), lr=0.05, weight_decay=0.1)
    with pytest.raises(
        FloatingPointError,
        match=r"not all of linear.weight is after step 4; begin anew with .* \(the last good checkpoint is kept in",
    ):
        run(model, optimizer, recipe=replace(RECIPE, save_every=1), folder=tmp_path, resume=True)
    assert (tmp_path / checkpoint.NAME).read_bytes() == before


def test_a_step_without_any_real_token_changes_nothing():
    def padding(step, index):
        batch = batch_at(step, index)
        return {**batch, "labels": torch.full_like(batch["labels"], PAD)}

    model, untouched = reader(), reader()
    history = run(model, torch.optim.SGD(model.parameters(), lr=1.0), data=padding)
    assert {(entry.loss, entry.tokens, entry.gradient_norm) for entry in history} == {(0.0, 0, 0.0)}
    assert_same(model, untouched)


def test_gradients_left_over_from_before_are_forgotten():
    model, clean = reader(), reader()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    run(model)
    run(clean)
    assert_same(model, clean)


def test_frozen_parameters_stay_as_they_were():
    model, untouched = reader(), reader()
    model.embedding.requires_grad_(False)
    run(model)
    assert torch.equal(model.embedding.weight, untouched.embedding.weight)
    assert not torch.equal(model.linear.weight, untouched.linear.weight)


def test_batches_of_any_make_are_moved_to_the_models_device():
    pair = namedtuple("pair", ["x", "y"])
    x = torch.ones(2, 3)
    moved = loop._moved({"a": [x, 5], "b": (x, "text"), "c": pair(x, None)}, torch.device("meta"))
    assert all(part.is_meta for part in (moved["a"][0], moved["b"][0], moved["c"].x))
    assert (moved["a"][1], moved["b"][1], moved["c"].y) == (5, "text", None)
    assert isinstance(moved["c"], pair)
    assert not x.is_meta


@pytest.mark.parametrize("name", ["steps", "micro_batches", "save_every", "measure_every"])
def test_a_number_below_1_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, but it is 0"):
        Recipe(**{"steps": 3, name: 0})


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan")])
def test_a_gradient_cannot_be_clipped_to_nothing(clip_norm):
    with pytest.raises(ValueError, match=f"clip_norm must be above 0, but it is {clip_norm}; None switches"):
        Recipe(steps=3, clip_norm=clip_norm)


def test_what_cannot_be_kept_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match=r"about must be JSON, but .*Tensor"):
        Recipe(steps=3, about={"weights": torch.ones(2)})


def test_more_processes_than_micro_batches_are_refused(monkeypatch):
    monkeypatch.setattr(loop, "join_processes", lambda device: (0, 5))
    with pytest.raises(ValueError, match="5 processes share 3; start fewer processes or set micro_batches=5"):
        run(reader())


def test_one_process_in_a_group_of_one_gives_the_numbers_of_one_alone():
    alone, grouped = reader(), reader()
    history = run(alone)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert run(grouped) == history
    finally:
        distributed.destroy_process_group()
    assert_same(alone, grouped)


def torchrun(scenario, folder):
    """Run a scenario of `ddp_script` in two processes, on a port that is free."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, ddp_script.__file__, scenario, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_processes_stopped_and_resumed_agree_with_one_that_never_was(tmp_path):
    done = torchrun("stopped_and_resumed", tmp_path)
    assert done.returncode == 0, done.stderr
    alone = reader()
    history = run(alone)
    for rank in (0, 1):
        assert (tmp_path / f"stopped_{rank}.txt").read_text().startswith("stopped after 5 of 11 steps")
        assert_close(
            torch.load(tmp_path / f"losses_{rank}.pt"), [entry.loss for entry in history], rtol=1e-12, atol=0.0
        )
        parameters = torch.load(tmp_path / f"model_{rank}.pt")
        assert_close(parameters, dict(alone.state_dict()), rtol=1e-9, atol=1e-12)
    # The first process alone shows and measures.
    assert done.stderr.count("step 11 of 11") == 1
    assert "rank 1" not in done.stderr
    # One process takes up what two have left.
    alone_again = reader()
    assert [entry.loss for entry in run(alone_again, folder=tmp_path / "run", resume=True)] == torch.load(
        tmp_path / "losses_0.pt"
    )
    assert_same(alone_again, reader_from(tmp_path / "model_0.pt"))


def reader_from(path: Path):
    model = reader()
    model.load_state_dict(torch.load(path))
    return model


def test_when_one_process_fails_the_others_end_too_and_the_checkpoint_is_kept(tmp_path):
    done = torchrun("broken", tmp_path)
    assert done.returncode != 0
    assert "RuntimeError: no more data" in done.stderr
    _, about = checkpoint.read(tmp_path / "run")
    assert len(about["history"]) == 2
