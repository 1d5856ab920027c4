"""Copies in a real S3 server that is killed, hangs, is full, and lies."""

import asyncio
from uuid import uuid4

import msgspec
import pytest
from object_stores import ACCESS, SECRET, Node, S3Server, start, steps
from run_folder import RunFolder, plan_of
from saved_checkpoints import save, save_model

from launcher import api
from launcher.copies.stored import fetch_stored, open_store
from launcher.errors import Exit, LaunchError, Unreachable
from tests.waits import eventually
from trainer.checkpoint_files.layout import data_name, folder_name
from trainer.checkpoint_files.object_store import ObjectStore


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one = S3Server(tmp_path_factory.mktemp("s3") / "server")
    one.start()
    yield one
    one.kill()


@pytest.fixture
def run(server, tmp_path, monkeypatch):
    """An ended run whose credentials are its secrets, and whose bucket is there."""
    bucket = f"bucket-{uuid4().hex}"
    server.make(bucket)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    one = RunFolder(tmp_path / "job-abcd").succeeded()
    plan = plan_of(one.path)
    checkpoint = msgspec.structs.replace(plan.spec.checkpoint, copy_to=f"s3://{bucket}/prefix")
    secrets = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    spec = msgspec.structs.replace(plan.spec, checkpoint=checkpoint)
    one.write(one.run.plan, msgspec.structs.replace(plan, spec=spec, secrets=tuple(secrets)))
    one.write(one.run.secrets, secrets)
    return one


@pytest.fixture
def store(run, monkeypatch):
    """Open the store as the run's agent does."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return open_store(msgspec.json.decode(run.run.plan.read_bytes(), type=type(plan_of(run.path))))


def uploaded(folder, store, *saves, **rules):
    async def scene():
        node = Node(folder, store, **rules)
        node.uploads.follow(start())
        for step in saves:
            save(folder, step)
            node.uploads.note(step)
            await eventually(lambda step=step: step in steps(ObjectStore(store.url)), f"step {step}")
        assert await node.uploads.settle() == ""

    asyncio.run(scene())


def same(run, folder, step):
    names = [data_name(0), data_name(1), "MANIFEST.json"]
    here, there = (place / folder_name(step) for place in (run.path / "checkpoints", folder))
    return all((here / name).read_bytes() == (there / name).read_bytes() for name in names)


def test_what_was_copied_comes_back_and_old_ones_go(run, store, tmp_path):
    uploaded(tmp_path / "node", store, 10, 20, 30, keep=2)
    assert steps(store) == [20, 30]
    assert len(store.folders()) == 2
    assert fetch_stored(run.run, "newest") == [
        f"checkpoint of step 30 from {store.url}: {run.path}/checkpoints/step-00000030"
    ]
    assert same(run, tmp_path / "node", 30)
    assert fetch_stored(run.run, "newest") == []
    assert fetch_stored(run.run, "20") and same(run, tmp_path / "node", 20)


def test_an_export_takes_what_is_nowhere_else(run, store, tmp_path):
    made = save_model(tmp_path / "node", 10)

    async def scene():
        node = Node(tmp_path / "node", store)
        node.uploads.follow(start())
        assert await node.uploads.settle() == ""

    asyncio.run(scene())
    found = api.Run(run.run.id, run.path).export(tmp_path / "model.safetensors")
    assert (found.step, found.tensors) == (10, 1)
    assert (run.path / "checkpoints" / made.name / "MANIFEST.json").read_bytes() == (
        made / "MANIFEST.json"
    ).read_bytes()


def test_a_server_that_is_killed_gets_all_of_it_once_it_is_back(run, store, server, tmp_path):
    bucket = store.url.split("/")[2]

    async def scene():
        node = Node(tmp_path / "node", store)
        node.uploads.follow(start())
        save(tmp_path / "node", 10)
        with server.told("hang"):
            node.uploads.note(10)
            server.kill()
        await eventually(lambda: node.said, "the failure is told")
        await asyncio.to_thread(server.start, bucket)
        assert await node.uploads.settle() == ""
        return node.said

    said = asyncio.run(scene())
    assert [kind for kind, _ in said] == ["copy_failed", "checkpoint_stored"]
    assert steps(store) == [10]


def test_nothing_waits_for_a_server_that_hangs(run, store, server, tmp_path):
    async def scene():
        node = Node(tmp_path / "node", store)
        with server.told("hang"):
            node.uploads.follow(start())
            for step in (10, 20, 30, 40):
                save(tmp_path / "node", step)
                node.uploads.note(step)  # returns although no answer can come
            node.uploads.close()
            node.uploads.follow(start())  # another generation begins
        assert await node.uploads.settle() == ""

    asyncio.run(scene())
    assert steps(store)[-1] == 40


def test_a_full_server_is_told_once_without_credentials_and_tried_again(run, store, server, tmp_path):
    async def scene():
        node = Node(tmp_path / "node", store)
        with server.told("full"):
            node.uploads.follow(start())
            save(tmp_path / "node", 10)
            node.uploads.note(10)
            await eventually(lambda: node.said, "the failure is told")
        assert await node.uploads.settle() == ""
        return node.said

    (_, told), (kind, _) = asyncio.run(scene())
    assert kind == "checkpoint_stored"
    assert "reached its limit" in told
    assert ACCESS not in told and SECRET not in told
    assert steps(store) == [10]


def test_a_server_that_lies_is_found_out(run, store, server, tmp_path):
    uploaded(tmp_path / "node", store, 10, 20)
    with server.told("lie"), pytest.raises(LaunchError) as raised:
        fetch_stored(run.run, "newest")
    assert raised.value.exit_code == Exit.DAMAGED
    assert not list((run.path / "checkpoints").glob("step-*"))
    store.put(next(one for one, step in store.folders().items() if step == 20), data_name(0), [b"?" * 1000])
    assert "step 10" in fetch_stored(run.run, "newest")[0]
    assert same(run, tmp_path / "node", 10)


def test_what_it_says_is_shown_without_credentials(run, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:1/{SECRET}")
    with pytest.raises(Unreachable) as raised:
        fetch_stored(run.run, "newest")
    assert "(secret)" in str(raised.value)
    assert SECRET not in str(raised.value)
