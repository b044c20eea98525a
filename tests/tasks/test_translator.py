import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from mha_course import checkpoint
from mha_course.cli import main
from mha_course.loop import Stopped
from mha_course.tasks.translation import PAD, NumberTranslation
from mha_course.tasks.translator import SHIPPED, Plan, Translator, load

SMALL = Plan(below=1000, d_model=32, num_layers=1, steps=7, batch_size=22)


def test_the_shipped_translator_still_reaches_what_its_recipe_says():
    _, about = checkpoint.read(SHIPPED)
    translator = load()
    right = translator.right(translator.task.held_out(2500))
    assert {"right": int(right.sum()), "of": len(right)} == about["held out"]
    assert about["held out"]["of"] == 25_000
    assert about["held out"]["right"] >= 0.999 * 25_000
    assert (SHIPPED / checkpoint.NAME).stat().st_size < 600_000


def test_the_shipped_translator_was_made_by_the_default_plan():
    assert load().plan == Plan()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "null"),
        (42, "zwei und vierzig"),
        (21_000, "ein und zwanzig tausend"),
        (101_101, "ein hundert ein tausend ein hundert eins"),
    ],
)
def test_it_translates(number, words):
    assert " ".join(load().translate(number)) == words


def test_its_cross_attention_crosses_where_tens_and_units_change_places():
    source, target, weights = load().alignment(342_087)
    assert source == ["three", "hundred", "forty", "two", "thousand", "eighty", "seven"]
    assert target == [*["drei", "hundert", "zwei", "und", "vierzig", "tausend", "sieben", "und", "achtzig"], "<end>"]
    assert weights.shape == (2, 4, 10, 7)
    best = weights.mean(dim=1)[-1].argmax(dim=-1)
    looked_at = {word: source[i] for word, i in zip(target, best.tolist(), strict=True)}
    assert looked_at["zwei"] == "two"
    assert looked_at["vierzig"] == "forty"
    assert looked_at["sieben"] == "seven"
    assert looked_at["achtzig"] == "eighty"


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    runs = [Translator(replace(SMALL, seed=seed)).train(progress=False) for seed in (3, 3, 4)]
    losses = [[step.loss for step in run] for run in runs]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_the_loss_of_an_untrained_translator_is_that_of_a_guess_and_falls():
    translator = Translator(replace(SMALL, steps=60, batch_size=64))
    losses = [step.loss for step in translator.train(progress=False)]
    guess = torch.tensor(float(len(translator.task.target_vocabulary))).log().item()
    assert losses[0] == pytest.approx(guess, rel=0.3)
    assert losses[-1] < 0.5 * losses[0]


def test_the_loss_is_pytorchs_mean_over_the_real_tokens_alone():
    plan = replace(SMALL, steps=1, micro_batches=1)
    (first,), untrained = Translator(plan).train(progress=False), Translator(plan)
    batch = untrained.task.batch_at(plan.seed, 0, plan.batch_size)
    logits = untrained.model(batch.source, batch.decoder_input).flatten(0, 1)
    assert first.loss == pytest.approx(F.cross_entropy(logits, batch.labels.flatten(), ignore_index=PAD).item())
    assert first.tokens == (batch.labels != PAD).sum()


def test_every_number_of_an_update_is_drawn_once_however_it_is_parted():
    whole, parted = (Translator(replace(SMALL, micro_batches=parts)).train(progress=False) for parts in (1, 3))
    assert whole[0].tokens == pytest.approx(parted[0].tokens, rel=0.3)


def test_a_run_that_is_resumed_ends_with_the_same_numbers(tmp_path):
    unbroken = Translator(SMALL)
    whole = unbroken.train(progress=False)
    with pytest.raises(Stopped):
        Translator(SMALL).train(folder=tmp_path, progress=False, watch=_interrupt, watch_every=3)
    resumed = Translator(SMALL)
    assert resumed.train(folder=tmp_path, resume=True, progress=False, watch_every=3)[-1].loss == whole[-1].loss
    for ours, theirs in zip(resumed.model.parameters(), unbroken.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def _interrupt():
    signal.raise_signal(signal.SIGINT)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    checkpoint.write(tmp_path, {"model.weight": torch.ones(2)}, {"settings": {"about size": 3}})
    with pytest.raises(ValueError, match="holds another model"):
        load(tmp_path)


def test_trained_on_short_numbers_alone_it_is_still_judged_by_all():
    short, all_of_them = NumberTranslation("de", 1000, at_most_words=2), NumberTranslation("de", 1000)
    assert torch.equal(short.held_out_numbers, all_of_them.held_out_numbers)


def test_the_command_trains_keeps_resumes_and_reports(tmp_path, capsys):
    command = ["train", "numbers", "--below", "1000", "--folder", str(tmp_path / "run"), "--language", "fr"]
    assert main([*command, "--steps", "2"]) == 0
    out = capsys.readouterr().out
    assert "of 25 numbers that it never saw" in out
    assert load(tmp_path / "run").plan.language == "fr"
    assert main([*command, "--steps", "2"]) == 2
    assert "there is one in" in capsys.readouterr().err
    assert main([*command, "--steps", "2", "--resume"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--below", "10"], "below must be from 1,000"),
        (["--device", "cuda"], "no device 'cuda'"),
        (["--resume"], "there is no checkpoint at"),
        (["--seed", "-1"], "the seed must not be below 0"),
        (["--micro-batches", "300"], "from 1 to 256 micro-batches"),
    ],
)
def test_wrong_usage_is_said_in_one_sentence(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["train", "numbers", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_two_processes_reach_the_numbers_of_one(tmp_path):
    plan = ["train", "numbers", "--below", "1000", "--steps", "3"]
    assert main([*plan, "--folder", str(tmp_path / "one")]) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    program = Path(sys.executable).with_name("mha-course")
    ran = subprocess.run(
        [*torchrun, str(program), *plan, "--folder", str(tmp_path / "two")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("numbers that it never saw") == 1
    one, two = (checkpoint.read(tmp_path / run)[1]["history"] for run in ("one", "two"))
    assert [step["loss"] for step in two] == pytest.approx([step["loss"] for step in one], rel=1e-4)


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_another_device_reaches_the_losses_of_the_cpu_to_one_in_a_thousand(device):
    if not getattr(torch, device).is_available():
        pytest.skip(f"no {device} here")
    on_cpu, there = Translator(SMALL), Translator(SMALL)
    there.model.to(device)
    losses = [[step.loss for step in one.train(progress=False)] for one in (on_cpu, there)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
