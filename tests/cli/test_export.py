import json
import struct

import pytest
from saved_checkpoints import flip, keep_best
from saved_checkpoints import save_model as save

from launcher.errors import Exit
from trainer.checkpoint_files.layout import data_name


@pytest.fixture
def run(desk):
    return desk.run().succeeded(checkpoint=120)


@pytest.fixture
def folder(run):
    return run.path / "checkpoints"


def read(path):
    """Of a file of safetensors the tensors' numbers, and its notes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    notes = head.pop("__metadata__")
    numbers = {}
    for name, one in head.items():
        begin, end = one["data_offsets"]
        assert one["dtype"] == "F32"
        numbers[name] = struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin : 8 + length + end])
    return numbers, notes


def test_the_newest_by_default(desk, folder):
    save(folder, 80)
    save(folder, 120, (4.0, 5.0))
    done = desk.launch("export", "last")
    assert done.stdout == "job-abcd.safetensors\n"
    assert done.stderr == "step 120: 1 tensor, 8 B, float32\n"
    numbers, notes = read(desk.root / "job-abcd.safetensors")
    assert numbers == {"weight": (4.0, 5.0)}
    assert notes == {"format": "pt", "run": "job-abcd", "step": "120"}
    assert not [*desk.root.glob(".*.tmp-*")]


def test_the_best_is_told_with_its_value(desk, folder):
    save(folder, 80, val_loss=0.25, best_by="val_loss")
    keep_best(folder, 80)
    save(folder, 120, (9.0, 9.0))
    done = desk.launch("export", "last", "--best", "-o", "m.safetensors")
    assert done.stderr == "step 80, the best by val_loss 0.25: 1 tensor, 12 B, float32\n"
    assert read(desk.root / "m.safetensors")[0] == {"weight": (1.0, 2.0, 3.0)}


def test_that_of_a_step(desk, folder):
    save(folder, 80)
    save(folder, 120, (9.0, 9.0))
    desk.launch("export", "last", "--step", "80", "-o", "m.safetensors")
    assert read(desk.root / "m.safetensors")[1]["step"] == "80"
    said = desk.launch("export", "last", "--step", "90", check=Exit.REFUSED).stderr
    assert said == "launch: job-abcd has no checkpoint of step 90; there are steps 120, 80\n"


def test_what_is_not_there_is_told_with_a_way_out(desk, folder):
    said = desk.launch("export", "last", check=Exit.REFUSED).stderr
    assert "job-abcd has no checkpoint of the trainer's" in said
    save(folder, 80)
    said = desk.launch("export", "last", "--best", check=Exit.REFUSED).stderr
    assert "job-abcd has kept none apart as the best; there are steps 80\nhint: " in said


def test_a_damaged_one_is_never_written(desk, folder):
    save(folder, 80)
    flip(save(folder, 120) / data_name(1))
    said = desk.launch("export", "last", "--step", "120", check=Exit.DAMAGED).stderr
    assert "rank-00001.data: its checksum is not the one that was written down" in said
    assert not (desk.root / "job-abcd.safetensors").exists()
    done = desk.launch("export", "last")
    assert "warning: passed over" in done.stderr
    assert "step 80: 1 tensor" in done.stderr


def test_a_file_that_is_there_stays_unless_it_may_go(desk, folder):
    save(folder, 80)
    (desk.root / "m.safetensors").write_text("mine")
    said = desk.launch("export", "last", "-o", "m.safetensors", check=Exit.REFUSED).stderr
    assert said == "launch: m.safetensors: is there already\nhint: --force writes over it\n"
    assert (desk.root / "m.safetensors").read_text() == "mine"
    desk.launch("export", "last", "-o", "m.safetensors", "--force")
    assert read(desk.root / "m.safetensors")[0] == {"weight": (1.0, 2.0, 3.0)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["-o", "model.onnx"],
            "model.onnx: expected a name that ends with .safetensors, .pt, .pth or .dcp, or a folder's",
        ),
        (["-o", "none/model.pt"], "none/model.pt: expected a file in a folder that is there"),
        (["--best", "--step", "80"], "not allowed with argument"),
        (["--shard-size", "much"], "expected a size such as 512KB, 100MB or 2GiB, got 'much'"),
        (["--step", "newest"], "expected a step such as 1200, got 'newest'"),
        (["--dtype", "int8"], "invalid choice"),
        (
            ["--model", "critic"],
            "expected one of the models that are kept, got critic; they are: one, which has no name",
        ),
    ],
)
def test_what_cannot_be_written(desk, folder, words, said):
    save(folder, 80)
    assert said in desk.launch("export", "last", *words, check=Exit.BAD_INPUT).stderr


def test_a_folder_of_several_files(desk, folder):
    save(folder, 80, names=("a", "b"))
    done = desk.launch("export", "last", "-o", "m", "--shard-size", "1KB")
    assert done.stdout == "m\n"
    assert [path.name for path in (desk.root / "m").iterdir()] == ["model.safetensors"]
    (desk.root / "m" / "notes.txt").write_text("mine")
    said = desk.launch("export", "last", "-o", "m", "--force", check=Exit.REFUSED).stderr
    assert said == "launch: m: has files that no export writes, such as notes.txt\n"


def test_of_several_models_one_is_named(desk, folder):
    save(folder, 80, names=("actor/w", "critic/w"))
    said = desk.launch("export", "last", check=Exit.BAD_INPUT).stderr
    assert "they are: actor, critic\nhint: --model NAME" in said
    desk.launch("export", "last", "--model", "critic")
    assert [*read(desk.root / "job-abcd.safetensors")[0]] == ["w"]


def test_another_type(desk, folder):
    save(folder, 80)
    done = desk.launch("export", "last", "--dtype", "bfloat16")
    assert done.stderr == "step 80: 1 tensor, 6 B, bfloat16\n"
    assert (desk.root / "job-abcd.safetensors").read_bytes()[-6:] == struct.pack("<3H", 0x3F80, 0x4000, 0x4040)
