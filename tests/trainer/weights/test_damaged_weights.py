"""Whatever is done to the bytes of weights, they are read or refused with TrainerError, and nothing in them is run."""

import io
import json
import pickle
import pickletools
import struct
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from weight_samples import saved

from tests.sizes import NIGHTLY, SCALE
from trainer.checkpoint_files import pickle_writer as pickled
from trainer.errors import TrainerError
from trainer.weights.dcp import open_dcp
from trainer.weights.loading import CheckpointChoice, opened

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # no_dist says so
    pytest.mark.filterwarnings("ignore:Detected pickle protocol"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]
STATE = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.int64)}
DESCRIPTIONS, FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"


def read(path):
    with opened(path, CheckpointChoice(), lambda _: None) as source:
        return {name: source.tensor(name).clone() for name in source.shapes}


def of_safetensors(folder):
    save_file(STATE, folder / "m.safetensors")
    return folder / "m.safetensors", folder / "m.safetensors"


def of_torch(folder):
    torch.save({"state_dict": STATE, "epoch": 3}, folder / "m.pt")
    return folder / "m.pt", folder / "m.pt"


def of_old_torch(folder):
    torch.save(STATE, folder / "m.pth", _use_new_zipfile_serialization=False)
    return folder / "m.pth", folder / "m.pth"


def of_an_index(folder):
    save_file(STATE, folder / "a.safetensors")
    homes = {"weight_map": dict.fromkeys(STATE, "a.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(homes))
    return folder, folder / "model.safetensors.index.json"


def of_our_manifest(folder):
    return folder, saved(folder, STATE).path / "MANIFEST.json"


def of_our_data(folder):
    return folder, next(saved(folder, STATE).path.glob("rank*"))


def of_dcp(folder):
    state = {**STATE, "optimizer": {"lr": 1e-3, "m": torch.ones(3)}, "step": 7}
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder, folder / ".metadata"


def of_dcps_parts(folder):
    of_dcp(folder)
    return folder, folder / "__0_0.distcp"


KINDS = [of_safetensors, of_torch, of_old_torch, of_an_index, of_our_manifest, of_our_data, of_dcp, of_dcps_parts]
OPCODES = [code.code.encode("latin-1") for code in pickletools.opcodes]


@st.composite
def damages(draw):
    """A cut, or some bytes that are replaced, taken out or put in, at places told as parts of the whole length."""
    where, length = draw(st.floats(0, 1)), draw(st.integers(0, 40))
    piece = st.one_of(st.binary(max_size=8), st.sampled_from(OPCODES), st.sampled_from([b"[" * 200, b"\xff" * 8]))
    return [
        (where, None if draw(st.booleans()) and length > 30 else length % 8, draw(piece)) for _ in range(1 + length % 3)
    ]


def damaged(data, changes):
    for where, length, piece in changes:
        at = int(where * len(data))
        data = data[:at] + piece + (b"" if length is None else data[at + length :])
    return data


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_damaged_weights_are_read_or_refused_with_one_error(tmp_path, kind):
    path, file = kind(tmp_path)
    whole = file.read_bytes()
    assert read(path).keys() >= STATE.keys()

    @settings(max_examples=300 * SCALE if NIGHTLY else 150, deadline=None, database=None)
    @given(damages())
    @example([(0.0, None, b"")])
    @example([(0.0, 0, b"\x80\x02}" + b"}" * 100_000)])
    @example([(0.02, 0, b'{"a":' * 50_000)])
    @example([(0.04, 2, b"\xff\xfe")])
    def any_damage(changes):
        file.write_bytes(damaged(whole, changes))
        try:
            read(path)
        except TrainerError as error:
            assert str(error)

    any_damage()


def a_pickle(instead, data):
    """The archive of torch.save in `data` with another pickle in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, instead if entry.filename.endswith("data.pkl") else old.read(entry))
    return out.getvalue()


@pytest.mark.parametrize("words", [b"\x80\x02)\x81.", b"\x80\x02K\x01b.", b"\x80\x02X\x02\x00\x00\x00\xff\xff.", b"."])
def test_a_damaged_pickle_in_an_archive_that_is_whole(tmp_path, words):
    path, _ = of_torch(tmp_path)
    path.write_bytes(a_pickle(words, path.read_bytes()))
    with pytest.raises(TrainerError, match="cannot be read"):
        read(path)


class Touch:
    """Something that makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def shows_a_tensor_and_gives_bytes():
    """A `.metadata` of nothing but what DCP names: BUILD sets attributes on classes and functions of torch.

    Its table's `items()` shows a tensor, for which `["w"]` gives bytes, and torch unpickles those.
    """
    index, layout = (
        pickled.name_of(DESCRIPTIONS, "MetadataIndex"),
        pickled.name_of("torch.serialization", "_get_layout"),
    )
    size = pickled.called(pickled.name_of("torch", "Size"), pickled.numbers([1]))
    at = pickled.called(pickled.name_of("torch", "Size"), pickled.numbers([0]))
    contiguous = pickled.called(pickled.name_of(DESCRIPTIONS, "_MEM_FORMAT_ENCODING"), pickled.number(0))
    strided = pickled.called(layout, pickled.text("torch.strided"))
    properties = pickled.row(pickled.name_of("torch", "float32"), strided, pickled.NO, contiguous, pickled.NO)
    chunk = pickled.record(pickled.name_of(DESCRIPTIONS, "ChunkStorageMetadata"), {"offsets": at, "sizes": size})
    tensor = pickled.record(
        pickled.name_of(DESCRIPTIONS, "TensorStorageMetadata"),
        {
            "properties": pickled.made(pickled.name_of(DESCRIPTIONS, "TensorProperties"), properties),
            "size": size,
            "chunks": pickled.sequence([chunk]),
        },
    )
    key = pickled.record(index, {"fqn": pickled.text("w"), "index": b"N"})
    shown = pickled.sequence([pickled.row(pickled.text("w"), tensor)])
    pairs = [(b"h\x01", shown), (pickled.text("torch.strided"), pickled.text("strided"))]
    callable_index = index + b"N" + pickled.table([(pickled.text("__call__"), layout)]) + b"\x86b0"
    bytes_of_w = pickled.record(pickled.name_of(DESCRIPTIONS, "BytesStorageMetadata"), {})
    table = pickled.called(pickled.name_of("collections", "OrderedDict"))
    table += b"(" + pickled.text("w") + bytes_of_w + b"u" + pickled.table([(pickled.text("items"), b"h\x01")]) + b"b"
    place = {"relative_path": pickled.text("__0_0.distcp"), "offset": pickled.number(0), "length": pickled.number(4000)}
    stored = pickled.table([(b"h\x01", pickled.record(pickled.name_of(FILES, "_StorageInfo"), place))])
    first = strided + b"0" + key + b"q\x010" + callable_index
    first += layout + pickled.table([(pickled.text("cache"), pickled.table(pairs))]) + b"b0"
    fields = {"state_dict_metadata": table, "planner_data": b"}", "storage_data": stored}
    return pickled.PROTOCOL + first + pickled.record(pickled.name_of(DESCRIPTIONS, "Metadata"), fields) + pickled.STOP


def test_a_folder_of_dcp_runs_nothing_by_setting_attributes(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "__0_0.distcp").write_bytes(pickle.dumps(Touch(ran), 2))
    (tmp_path / ".metadata").write_bytes(shows_a_tensor_and_gives_bytes())
    with pytest.raises(TrainerError, match="was not written by torch"):
        open_dcp(tmp_path).tensor("w")
    assert not ran.exists()


def test_a_part_of_dcp_that_is_a_program_is_not_run(tmp_path):
    dcp.save({"w": torch.ones(1000)}, checkpoint_id=tmp_path, no_dist=True)
    evil, file, metadata = io.BytesIO(), tmp_path / "__0_0.distcp", tmp_path / ".metadata"
    torch.save(Touch(tmp_path / "ran"), evil)
    lengths = [b"M" + struct.pack("<H", length) for length in (file.stat().st_size, len(evil.getvalue()))]
    assert metadata.read_bytes().count(lengths[0]) == 1
    metadata.write_bytes(metadata.read_bytes().replace(*lengths))
    file.write_bytes(evil.getvalue())
    with pytest.raises(TrainerError, match=r"cannot be read: .*[Ww]eights"):
        read(tmp_path)
    assert not (tmp_path / "ran").exists()
