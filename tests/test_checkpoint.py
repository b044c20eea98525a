import os
from pathlib import Path

import pytest
import torch
from torch import nn

from mha_course import checkpoint

TENSORS = {
    "a.weight": torch.arange(15.0).reshape(3, 5),
    "b": torch.tensor(7),
    "c": torch.tensor([True, False]),
    "d": torch.randn(2, 3, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1)),
    "e": torch.zeros(0, 3, dtype=torch.float64),
}


def written(folder):
    checkpoint.write(folder, TENSORS, {"step": 3, "rate": 0.1})
    return folder / checkpoint.NAME


def assert_is_the_first_one(folder):
    tensors, about = checkpoint.read(folder)
    assert about == {"step": 3, "rate": 0.1}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_what_was_written_is_read_again_and_nothing_else_is_left_in_the_folder(tmp_path):
    written(tmp_path / "new" / "folder")
    assert_is_the_first_one(tmp_path / "new" / "folder")
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["checkpoint.safetensors"]


def test_tensors_that_share_memory_or_lie_transposed_are_written_whole(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    checkpoint.write(tmp_path, {"one": shared, "other": shared, "transposed": shared.T}, {})
    tensors, _ = checkpoint.read(tmp_path)
    assert torch.equal(tensors["one"], shared)
    assert torch.equal(tensors["other"], shared)
    assert torch.equal(tensors["transposed"], shared.T)


@pytest.mark.parametrize("moment", ["half written", "before it is on the disk", "before it is put in place"])
def test_whenever_writing_breaks_off_the_old_checkpoint_is_the_newest_and_whole(tmp_path, monkeypatch, moment):
    written(tmp_path)

    def half(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    def broken_off(*_):
        raise OSError("No space left on device")

    if moment == "half written":
        monkeypatch.setattr(checkpoint, "save_file", half)
    elif moment == "before it is on the disk":
        monkeypatch.setattr(os, "fsync", broken_off)
    else:
        monkeypatch.setattr(Path, "replace", broken_off)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path, {"a": torch.ones(3)}, {"step": 4})
    assert_is_the_first_one(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_data_is_on_the_disk_before_the_name_and_then_the_name(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(number):
        events.append("folder" if Path(f"/proc/self/fd/{number}").readlink() == tmp_path else "file")
        fsync(number)

    def recorded_replace(self, target):
        assert self.parent == Path(target).parent  # from one disk to another it would be a copy
        events.append("replace")
        return replace(self, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs Linux's /proc to tell a file from its folder")
    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    written(tmp_path)
    assert events == ["file", "replace", "folder"]


def test_what_a_killed_run_left_half_written_is_in_nobodys_way(tmp_path):
    written(tmp_path)
    (tmp_path / f"{checkpoint.NAME}.partial").write_bytes(b"half")
    assert_is_the_first_one(tmp_path)
    written(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_every_flipped_bit_is_refused(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(
            ValueError,
            match=r"is damaged .*; delete it and begin anew, or put a copy back|is another file; name the folder of a run",
        ):
            checkpoint.read(tmp_path)


@pytest.mark.parametrize("length", [0, 5, 300, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path, length):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"a checkpoint must be whole, but .*checkpoint.safetensors is damaged"):
        checkpoint.read(tmp_path)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"there is no checkpoint at .*checkpoint.safetensors; name the folder of a run"
    ):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    "other", [nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(3, 7).double(), nn.Linear(3, 7, bias=False)]
)
def test_another_model_is_refused_and_left_as_it_was(tmp_path, other):
    model = nn.Linear(3, 7)
    checkpoint.save(tmp_path, model, torch.optim.SGD(model.parameters()), {})
    before = other.weight.clone()
    with pytest.raises(ValueError, match=r"in the checkpoint in .* (weight|bias) is torch.float32 .*and now it is"):
        checkpoint.restore(tmp_path, other, torch.optim.SGD(other.parameters()))
    assert torch.equal(other.weight, before)


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ({"seed": 1}, {"seed": 2}, "seed is 1, and now it is 2"),
        ({"seed": 1}, {}, "seed is 1, and now it is missing"),
        ({}, {"seed": None}, "seed is missing, and now it is None"),
    ],
)
def test_the_first_difference_is_named(tmp_path, then, now, said):
    with pytest.raises(ValueError, match=f"{said}; change it back, or begin in another folder"):
        checkpoint.require_same(tmp_path, {"same": 1, **then}, {"same": 1, **now})
