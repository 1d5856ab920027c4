"""Numbers change their type as torch changes it."""

import struct
import sys

import pytest
import torch

from trainer.checkpoint_files.float_types import FLOATS, check_convertible, convert
from trainer.errors import BadSettings

SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), 65504.0, 65519.9, 65520.0, -7e4, 1e-8, 6e-8, 3.4e38, 1.0039062, 1.01]


def numbers(special):
    torch.manual_seed(1)
    every = torch.randint(-(2**31), 2**31, (20_000,), dtype=torch.int64).to(torch.int32).view(torch.float32)
    drawn = torch.cat([torch.randn(10_000), every[torch.isfinite(every)]])
    return torch.cat([drawn, torch.tensor(special)]) if special else drawn


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("special", [[], SPECIAL], ids=["finite", "special"])
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_each_to_each(source, target, special):
    given = numbers(special).to(getattr(torch, source))
    assert convert(raw(given), source, target) == raw(given.to(getattr(torch, target)))


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_what_is_no_number_stays_none(source, target):
    given = torch.tensor([1.0, float("nan"), 2.0]).to(getattr(torch, source))
    found = torch.frombuffer(bytearray(convert(raw(given), source, target)), dtype=getattr(torch, target))
    assert found.isnan().tolist() == [False, True, False]


def test_not_a_number_with_all_bits_set_does_not_become_one():
    data = struct.pack("<3I", 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001)
    found = torch.frombuffer(bytearray(convert(data, "float32", "bfloat16")), dtype=torch.bfloat16)
    assert found.isnan().all()


def test_nothing_is_nothing():
    assert convert(b"", "float32", "bfloat16") == b""


def test_other_types_are_none_of_these():
    with pytest.raises(ValueError, match="got int8"):
        convert(b"\0", "int8", "float32")
    with pytest.raises(ValueError, match="got int8"):
        convert(b"\0\0", "float16", "int8")


def test_every_half_and_what_lies_beside_it():
    """Both neighbours of each number that has no leading one, of each middle between two, and of the ends."""
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    middles = (halves.float() + halves.roll(-1).float()) / 2
    given = torch.cat([halves.float(), middles])
    given = given[given.isfinite()].view(torch.int32)
    given = torch.cat([given - 1, given, given + 1]).view(torch.float32)
    given = given[~given.isnan()]
    assert convert(raw(given), "float32", "float16") == raw(given.to(torch.float16))


def test_without_numpy_a_type_is_refused_before_anything_is_read(monkeypatch):
    check_convertible("bfloat16")
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(BadSettings, match=r"^bfloat16: another type needs numpy, which is not installed\nhint: "):
        check_convertible("bfloat16")
