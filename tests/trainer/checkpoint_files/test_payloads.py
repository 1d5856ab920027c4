"""Files that run something when a careless reader loads them: here nothing does, wherever they lie."""

import contextlib
import io
import json
import marshal
import os
import pickle
import struct
import tarfile
import zipfile

import pytest
import xxhash
from checkpoint_lab import save

from trainer.checkpoint_files import catalog, commit, fence
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.durable import read_into, write_new
from trainer.checkpoint_files.layout import FENCE, MANIFEST, data_name, folder_name
from trainer.checkpoint_files.manifest import FileEntry, Manifest
from trainer.errors import CheckpointDamaged


class Bomb:
    def __init__(self, call, *args):
        self.reduced = (call, args)

    def __reduce__(self):
        return self.reduced


def archive(data: bytes) -> bytes:
    """Write an archive as torch.save does."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", data)
    return buffer.getvalue()


def escaping_tar(canary) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo(str(canary)))
        file.addfile(tarfile.TarInfo("../../canary"))
    return buffer.getvalue()


def sealed(document: object) -> bytes:
    """A manifest whose checksum is right."""
    body = json.dumps(document).encode()
    return b'{"checksum":"%s","manifest":%s}\n' % (xxhash.xxh3_128_hexdigest(body).encode(), body)


def payloads(canary) -> dict[str, bytes]:
    touch = f"open({str(canary)!r}, 'w').close()"
    shell = f"touch {canary}"
    code = compile(touch, "payload", "exec")
    plain = {"step": 1, "world_size": 1, "nonce": "n", "files": [], "tensors": {}, "trees": {}}
    deed = {"py/reduce": [{"py/function": "os.system"}, [shell]], "__class__": "os.system", "__reduce__": shell}
    bombs = {f"pickle {number}": pickle.dumps(Bomb(exec, touch), number) for number in range(6)}
    system = pickle.dumps(Bomb(os.system, shell))
    return bombs | {
        "pickle of eval": pickle.dumps(Bomb(eval, touch)),
        "pickle of system": system,
        "pickle inside of a list": pickle.dumps([1, {"a": Bomb(exec, touch)}]),
        "archive": archive(system),
        "array of objects": b"\x93NUMPY\x01\x00" + struct.pack("<H", 60)
        + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(59) + b"\n" + system,
        "marshal": marshal.dumps(code),
        "pyc": b"\xa7\r\r\n" + bytes(12) + marshal.dumps(code),
        "source": touch.encode(),
        "script": f"#!/bin/sh\n{shell}\n".encode(),
        "yaml": f"!!python/object/apply:os.system ['{shell}']\n".encode(),
        "json": json.dumps(deed).encode(),
        "sealed json": sealed(deed),
        "sealed manifest": sealed(plain | deed),
        "xml": f'<!DOCTYPE x [<!ENTITY e SYSTEM "file://{canary}">]><x>&e;</x>'.encode(),
        "tar": escaping_tar(canary),
        "format": f"{{0.__class__.__init__.__globals__}}%(x)s${{{shell}}}$({shell})`{shell}`".encode(),
    }  # fmt: skip


KINDS = sorted(payloads("canary"))
EXTRA = (".metadata", "__init__.py", "conftest.py", "sitecustomize.py", "data.pkl", "__main__.py")


def look_at(folder) -> None:
    """Call every function that reads checkpoints."""
    for entry in catalog.entries(folder):
        for look in (catalog.read_manifest, catalog.verify):
            try:
                manifest = look(entry)
            except CheckpointDamaged:
                continue
            for file in manifest.files:
                read_into(entry.path / file.name, file.size, file.digest, [(0, memoryview(bytearray(file.size)))])
    with contextlib.suppress(CheckpointDamaged):
        fence.read_token(folder)
    mine = commit.take_over(folder)
    for entry in catalog.entries(folder):
        try:
            commit.publish_best(entry, mine)
        except CheckpointDamaged:
            commit.set_aside(entry)
    commit.remove(entry.path for entry in catalog.entries(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_runs(folder, memory, monkeypatch, kind):
    canary = memory / "canary"
    payload = payloads(canary)[kind]
    monkeypatch.chdir(folder)
    for place in (MANIFEST, FENCE, data_name(0), "a committed file", *EXTRA):
        mine = commit.take_over(folder)
        if place == "a committed file":
            draft = commit.begin(folder, 1, mine)
            written = write_new(draft / data_name(0), [payload])
            one = FileEntry(data_name(0), written.size, written.digest)
            commit.publish(draft, Manifest(1, 1, "n", (one,), {}, {}), mine)
            assert catalog.verify(Entry("step", 1, folder / folder_name(1))).files == (one,)
        else:
            path = save(folder, 1, mine)
            (folder if place == FENCE else path).joinpath(place).write_bytes(payload)
        look_at(folder)
        assert not canary.exists(), f"{kind} as {place} ran"
        assert catalog.entries(folder) == []
    assert len(KINDS) >= 20


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("pickle")])
def test_a_careless_reader_would_have_run_it(memory, kind):
    pickle.loads(payloads(memory / "canary")[kind])
    assert (memory / "canary").exists()
