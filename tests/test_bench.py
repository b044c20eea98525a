import itertools
import json
import math
import sys
from functools import partial
from importlib.metadata import version

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mha_course.bench import contestants, memory
from mha_course.bench.contestants import CONTESTANTS, Contestant, Layer, Shape, drawn, layer_of, left_out
from mha_course.bench.memory import Meter
from mha_course.bench.passes import PASSES, differences, prepared, runner
from mha_course.bench.timing import interleaved, ratio
from mha_course.cli import main

SUMS = "import torch; torch.ones(1 << 22).sum() + torch.ones(1 << 24).sum()"  # 16 MiB, gone again, then 64
SMALL = Shape(3, 7, 22, 2)
HERE = [name for name in CONTESTANTS if name not in left_out(tuple(CONTESTANTS))]
OURS = ["loop", "explicit", "fast"]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process reset its peak")


class Clock:
    """Stands still, but for the work that says how long it takes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


@pytest.fixture
def without_memory(monkeypatch):
    """No process is started to measure memory in."""
    monkeypatch.setattr("mha_course.bench.can_be_measured", lambda _device: False)
    monkeypatch.setattr(memory, "can_be_measured", lambda _device: False)


@pytest.fixture(scope="module")
def meter():
    """One process for all measurements: it takes seconds to start."""
    with Meter("cpu", 1) as meter:
        yield meter


def bench_as_json(capsys, *arguments):
    code = main(["bench", "--quick", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", HERE)
def test_every_contestant_agrees_with_pytorchs_own_layer(name):
    attention, x = drawn(SMALL, "cpu")
    right = layer_of("torch-weights", attention)
    assert differences({name: layer_of(name, attention)}, right, x)[name] < 1e-5


@pytest.mark.parametrize("name", HERE)
def test_a_pass_backward_reaches_the_tokens_and_every_parameter(name):
    attention, x = drawn(SMALL, "cpu")
    output, *gradients = runner(layer_of(name, attention), x, "forward_backward")()
    assert output.shape == x.shape
    parameters = sum(parameter.numel() for parameter in attention.parameters())
    assert sum(gradient.numel() for gradient in gradients) == x.numel() + parameters
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_the_weights_drawn_are_far_from_even_so_that_a_wrong_scale_would_show():
    attention, x = drawn(SMALL, "cpu")
    _, weights = attention.with_weights(x, x, x)
    assert weights.max(dim=-1).values.mean() > 3 / SMALL.length


def test_contestants_share_no_weights():
    attention, x = drawn(SMALL, "cpu")
    first, second = (layer_of("fast", attention) for _ in range(2))
    before = second(x)
    with torch.no_grad():
        first.inner.q_proj.weight.zero_()
    assert_close(second(x), before)


def test_turns_are_shuffled_and_times_are_per_call():
    clock, order = Clock(), []

    def work(name, seconds):
        order.append(name)
        clock.work(seconds)

    runs = {name: partial(work, name, seconds) for name, seconds in (("a", 0.005), ("b", 0.015), ("c", 0.1))}
    seconds, calls = interleaved(runs, 11, warm_up=1, clock=clock)
    assert calls == 4  # 0.02 s of the fastest
    for name, right in (("a", 0.005), ("b", 0.015), ("c", 0.1)):
        assert seconds[name] == pytest.approx([right] * 11)
    turns = [tuple(name for name, _ in itertools.groupby(order[at : at + 12])) for at in range(3, len(order), 12)]
    assert len(turns) == 11
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 2


def test_waiting_for_the_device_counts():
    clock = Clock()
    pending = []

    def wait():
        clock.work(sum(pending))
        pending.clear()

    seconds, _ = interleaved({"a": partial(pending.append, 0.5)}, 2, wait=wait, clock=clock)
    assert seconds == {"a": [0.5, 0.5]}


def test_ratios_are_taken_within_a_turn():
    found = ratio([2.0, 30.0, 4.0], [1.0, 10.0, 4.0])  # 2, 3 and 1
    assert (found.first_quartile, found.median, found.third_quartile) == (1.5, 2.0, 2.5)


def test_the_table_has_every_contestant_installed_and_fits_100_columns(capsys, without_memory):
    assert main(["bench", "--quick", "--repeats", "2"]) == 0
    told, error = capsys.readouterr()
    for name in HERE:
        assert told.count(CONTESTANTS[name].title) >= len(PASSES)
    assert "all results agree" in told
    assert "with the cache" in told
    assert f"torch {version('torch')}" in told
    assert max(map(len, told.splitlines())) <= 100
    assert error == ""  # no bar where no one looks on


def test_json_has_what_the_table_has(capsys, without_memory):
    code, found = bench_as_json(capsys, "--only", *OURS, "torch", "--shape", "3,7,22,2", "--repeats", "3")
    assert code == 0
    assert set(found) == {"machine", "left_out", "attention", "decoding", "lengths"}
    assert {"processor", "threads", "torch", "device", "memory"} <= set(found["machine"])
    assert [section["settings"]["pass"] for section in found["attention"]] == list(PASSES)
    for section in found["attention"]:
        assert section["settings"] | {"batch": 3, "length": 7, "d_model": 22, "num_heads": 2} == section["settings"]
        assert list(section["rows"]) == [*OURS, "torch"]
        for row in section["rows"].values():
            assert len(row["seconds"]) == section["repeats"] == 3
            assert row["median_seconds"] == sorted(row["seconds"])[1]
            base = section["rows"]["torch"]["seconds"]
            paired = sorted(mine / its for mine, its in zip(row["seconds"], base, strict=True))
            assert row["ratios"]["torch"]["median"] == pytest.approx(paired[1])
    assert list(found["decoding"][0]["rows"]) == ["recomputed", "cached"]
    assert found["decoding"][0]["differences"] == {"recomputed": 0.0, "cached": 0.0}
    assert found["lengths"]["fast"]["peak_bytes"] == {"512": None, "1024": None}


def test_json_goes_to_a_file_beside_the_table(capsys, tmp_path, without_memory):
    path = tmp_path / "found.json"
    arguments = ["bench", "--quick", "--only", "fast", "--parts", "attention", "--json", str(path)]
    assert main(arguments) == 0
    assert "fast: forward" in capsys.readouterr().out
    assert list(json.loads(path.read_text("utf-8"))["attention"][0]["rows"]) == ["fast"]


def test_who_disagrees_is_named_and_not_timed(capsys, monkeypatch, without_memory):
    def unscaled(attention):
        with torch.no_grad():
            attention.q_proj.weight.mul_(1.01)
        return Layer(attention, lambda inner, x: inner(x, x, x))

    monkeypatch.setitem(contestants.CONTESTANTS, "fast", Contestant("fast: forward", unscaled))
    code, found = bench_as_json(capsys, "--only", "fast", "explicit", "--parts", "attention")
    assert code == 1
    for section in found["attention"]:
        assert section["refused"] == ["fast"]
        assert section["differences"]["fast"] > 1e-3
        assert list(section["rows"]) == ["explicit"]
    assert main(["bench", "--quick", "--only", "fast", "--parts", "attention"]) == 1
    assert "DISAGREE and are not timed" in capsys.readouterr().out


def test_a_wrong_gradient_alone_is_noticed():
    attention, x = drawn(SMALL, "cpu")
    detached = Layer(attention, lambda inner, x: inner(x, x.detach(), x))
    assert differences({"detached": detached}, layer_of("torch", attention), x)["detached"] > 1e-3


def test_what_is_not_installed_is_named(capsys, monkeypatch, without_memory):
    absent = Contestant("Keras 3", lambda attention: Layer(attention, nn.Module.__call__), "no_such_package")
    monkeypatch.setitem(contestants.CONTESTANTS, "keras", absent)
    assert main(["bench", "--quick", "--only", "fast", "keras", "--parts", "attention"]) == 0
    assert "Left out: keras (no_such_package is not installed)." in capsys.readouterr().out


def test_what_cannot_be_loaded_is_named(capsys, monkeypatch, without_memory):
    def broken(_attention):
        raise ImportError("its library is of the wrong kind")

    monkeypatch.setitem(contestants.CONTESTANTS, "keras", Contestant("Keras 3", broken))
    code, found = bench_as_json(capsys, "--only", "fast", "keras", "--parts", "attention")
    assert code == 0
    assert found["left_out"] == {"keras": "its library is of the wrong kind"}


def test_a_terminal_gets_a_bar(capsys, monkeypatch, without_memory):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["bench", "--quick", "--only", "fast", "--parts", "attention", "--repeats", "2"]) == 0
    error = capsys.readouterr().err
    assert "] 100% " in error
    assert error.endswith("\r")


@on_linux
def test_memory_in_use_at_the_peak_is_found_though_it_is_free_at_the_end(meter):
    found = meter.measure(partial(partial, exec, SUMS, {}))
    assert found == pytest.approx(64 * 2**20, rel=0.05)


@on_linux
def test_memory_grows_with_the_square_of_the_length_where_weights_exist_and_linearly_where_not(meter):
    peaks = {
        (name, length): meter.measure(partial(prepared, name, Shape(1, length, 64, 4), "forward", "cpu"))
        for name in ("explicit", "fast")
        for length in (1031, 2063)
    }
    growth = {name: math.log2(peaks[name, 2063] / peaks[name, 1031]) for name in ("explicit", "fast")}
    assert growth["explicit"] > 1.7
    assert growth["fast"] < 1.3
    assert peaks["explicit", 2063] > 4 * 4 * 2063**2  # four heads of as many numbers of four bytes, at least


@on_linux
def test_a_measurement_that_ends_its_process_or_finds_no_memory_gives_nothing_and_the_next_one_is_right(meter):
    assert meter.measure(partial(partial, torch.ones, 1 << 55)) is None
    assert meter.measure(partial(partial, sys.modules["os"]._exit, 1)) is None
    assert meter.measure(partial(partial, torch.ones, 1 << 24)) == pytest.approx(64 * 2**20, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "explicitt"], "did you mean explicit?"),
        (["--only", "zzz"], "choose from loop, explicit, fast"),
        (["--shape", "8,128,512"], "a shape is four whole numbers above 0"),
        (["--shape", "8,0,512,8"], "'8,0,512,8'; try 8,128,512,8"),
        (["--shape", "8,128,512,7"], "7 do not divide 512"),
        (["--json", "no/such/folder/found.json"], "can't write to no/such/folder/found.json"),
    ],
)
def test_wrong_usage_gets_one_clear_line_and_code_2(arguments, told, capsys):
    assert main(["bench", "--quick", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(device, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert main(["bench", "--device", device]) == 2
    assert f"PyTorch finds no device '{device}' here" in capsys.readouterr().err


def test_the_number_of_threads_is_put_back(without_memory):
    before = torch.get_num_threads()
    few = ["--only", "fast", "--parts", "attention", "--shape", "1,2,3,1", "--repeats", "1"]
    assert main(["bench", *few, "--threads", str(before + 1)]) == 0
    assert torch.get_num_threads() == before
