"""Test that the checkpoint that ranks load is copied to every disk before they start."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from replication_lab import BOUND_S, Pool, content, held, names, quick, save_apart

from launcher.copies.client import DiskFailed
from launcher.copies.files import ReplicaFiles
from launcher.copies.protocol import Save
from launcher.copies.replication import NotBrought, NothingToLoad
from tests.waits import eventually
from trainer.checkpoint_files import catalog, partial
from trainer.checkpoint_files.layout import data_name, folder_name, is_bad, is_draft


def test_each_member_ends_up_with_every_file(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders, 20, size=3_000_000, ranks_each=2)
            assert await pool.bring([0, 1, 2]) == [None] * 3
            return pool

    pool = asyncio.run(scene())
    for folder in pool.folders:
        assert held(folder, 20) == names(*range(6))
        catalog.verify(catalog.entries(folder)[0])
    assert [pool.kinds(node) for node in range(3)] == [["checkpoint_fetched"]] * 3
    assert "fetched 12.0 MB of step 20" in pool.said[0][0].text


def test_nothing_to_fetch_costs_next_to_nothing(tmp_path):
    async def scene():
        async with Pool(tmp_path, 4) as pool:
            save_apart(pool.folders, 20)
            await pool.bring([0, 1, 2, 3])
            costs = []
            for generation in range(2, 12):
                with quick() as seconds:
                    assert await pool.bring([0, 1, 2, 3], generation=generation) == [None] * 4
                costs += seconds
            return sorted(costs)

    costs = asyncio.run(scene())
    print(f"four members agree in {costs[len(costs) // 2] * 1e3:.1f} ms")
    assert costs[0] < 0.5, costs  # 0.02 on a machine that does nothing else


def test_each_holder_is_asked_once_however_late_it_is(tmp_path, monkeypatch):
    """A member that had stood still gave up before it had asked anybody, and had no word of why."""

    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save_apart(pool.folders, 10)
            bring = pool.replications[0]._bring

            async def late(*how):
                pool.replications[0]._heard_at -= 1e9
                await bring(*how)

            monkeypatch.setattr(pool.replications[0], "_bring", late)
            assert await pool.bring([0, 1]) == [None, None]

    asyncio.run(scene())


def test_a_node_without_ranks_may_have_the_only_copy(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders[:2], 20)
            pool.folders[2].parent.mkdir()
            pool.folders[1].rename(pool.folders[2])
            assert await pool.bring([0, 1], others=[2]) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert held(pool.folders[0], 20) == held(pool.folders[1], 20) == names(0, 1)


def test_a_draft_of_what_another_has_committed_is_committed(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders, 20, prepared=[1, 2])
            assert await pool.bring([0, 1], others=[2]) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert held(pool.folders[1], 20) == names(0, 1, 2)
    assert held(pool.folders[2], 20) == names(2), "whoever was asked for its draft has committed it"


def test_a_draft_that_many_ask_for_at_once_is_committed_once(tmp_path, monkeypatch):
    save_apart([tmp_path], 20, prepared=[0])
    (draft,) = partial.inventory(tmp_path)
    files, promote, calls = ReplicaFiles(tmp_path), partial.promote, []
    asked, all_have_asked = [], threading.Event()

    def settle():
        asked.append(1)
        if len(asked) == 8:
            all_have_asked.set()
        files.commit(Save("step", 20, draft.digest))

    def held_up(*how):
        calls.append(how)
        assert all_have_asked.wait(BOUND_S)
        promote(*how)

    monkeypatch.setattr(partial, "promote", held_up)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(settle) for _ in range(8)]:
            done.result()
    assert held(tmp_path, 20) == names(0)
    assert len(calls) == 1


def test_what_nobody_has_committed_is_not_promoted(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save_apart(pool.folders, 10)
            save_apart(pool.folders, 20, prepared=[0, 1])
            assert await pool.bring([0, 1]) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert [held(folder, 20) for folder in pool.folders] == [None, None]
    assert [held(folder, 10) for folder in pool.folders] == [names(0, 1)] * 2


def test_a_newer_one_without_all_its_files_is_set_aside_and_said(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders, 10)
            await pool.bring([0, 1, 2])
            save_apart(pool.folders, 20)
            assert await pool.bring([0, 1], generation=2) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert [held(folder, 20) for folder in pool.folders] == [None, None, names(2)]
    assert [held(folder, 10) for folder in pool.folders[:2]] == [names(0, 1, 2)] * 2
    assert any(is_bad(name) for name in os.listdir(pool.folders[0]))
    assert pool.kinds(0)[-1] == "checkpoint_set_aside"
    assert "step 20" in pool.said[0][-1].text
    assert "ranks load step 10" in pool.said[0][-1].text


def test_it_is_left_alone_while_a_node_that_is_here_does_not_answer(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders, 10)
            await pool.bring([0, 1, 2])
            save_apart(pool.folders, 20)
            await pool.replications[2]._server.close()
            assert await pool.bring([0, 1], generation=2, others=[2]) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert [held(folder, 20) for folder in pool.folders] == [names(0), names(1), names(2)]


def test_a_member_whose_server_is_silent_is_named(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2, members_s=0.3) as pool:
            save_apart(pool.folders, 10)
            starts = pool.starts([0, 1])
            await pool.replications[1]._server.close()
            with pytest.raises(NotBrought, match="no list of checkpoints: node 1: "):
                await pool.replications[0].bring(starts[0])

    asyncio.run(scene())


def test_another_save_of_the_same_step_makes_room(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders[:1], 10, nonce="aaaa")
            save_apart(pool.folders[1:], 10, nonce="bbbb", attempt=2)
            assert await pool.bring([0, 1, 2]) == [None] * 3
            return pool

    pool = asyncio.run(scene())
    assert [held(folder, 10) for folder in pool.folders] == [names(0, 1)] * 3
    assert pool.kinds(0) == ["checkpoint_set_aside", "checkpoint_fetched"]
    manifests = {(folder / folder_name(10) / "MANIFEST.json").read_bytes() for folder in pool.folders}
    assert len(manifests) == 1


def test_a_damaged_source_is_passed_over_for_a_sound_one(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders[:2], 10, size=2_000_000)
            await pool.bring([0, 1])
            for rank in (0, 1):  # each of the two sources has one that is bad
                path = pool.folders[rank] / folder_name(10) / data_name(rank)
                path.write_bytes(content(7, 7, 2_000_000))
            assert await pool.bring([0, 1, 2], generation=2) == [None] * 3
            return pool

    pool = asyncio.run(scene())
    for folder in pool.folders:  # the two sources have a sound file in the place of the bad one, too
        assert held(folder, 10) == names(0, 1)
        catalog.verify(catalog.entries(folder)[0])


def test_where_every_source_is_damaged_the_next_generation_chooses_an_older_one(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save_apart(pool.folders, 5)
            save_apart(pool.folders, 10)
            (pool.folders[0] / folder_name(10) / data_name(0)).write_bytes(content(7, 7))
            starts = pool.starts([0, 1])
            first = asyncio.create_task(pool.replications[0].bring(starts[0]))
            with pytest.raises(NotBrought, match=r"rank-00000.data of step 10: node 0: .*not what was written"):
                await pool.replications[1].bring(starts[1])
            assert not first.done(), "ranks of the others do not start without it"
            first.cancel()
            await asyncio.wait([first])
            assert not any(is_draft(name) for name in os.listdir(pool.folders[1]))
            assert await pool.bring([0, 1], generation=2) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert [held(folder, 10) for folder in pool.folders] == [None, None]
    assert [held(folder, 5) for folder in pool.folders] == [names(0, 1)] * 2


def test_a_manifest_that_came_wrong_is_no_manifest(tmp_path, monkeypatch):
    async def scene():
        async with Pool(tmp_path, 2, give_up_s=BOUND_S) as pool:
            save_apart(pool.folders[:1], 10)
            starts = pool.starts([0, 1])
            files = pool.replications[0]._files
            manifest = files.manifest
            monkeypatch.setattr(files, "manifest", lambda save: manifest(save).replace(b"rank", b"knar"))
            first = asyncio.create_task(pool.replications[0].bring(starts[0]))
            with pytest.raises(NotBrought, match="another manifest"):
                await pool.replications[1].bring(starts[1])
            first.cancel()
            await asyncio.wait([first])
            return pool

    assert held(asyncio.run(scene()).folders[1], 10) is None


def test_a_full_disk_is_this_nodes_fault(tmp_path, monkeypatch):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save_apart(pool.folders, 10)
            starts = pool.starts([0, 1])

            def full(*_):
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(pool.replications[1]._files, "receive", full)
            first = asyncio.create_task(pool.replications[0].bring(starts[0]))
            with pytest.raises(DiskFailed, match="No space left"):
                await pool.replications[1].bring(starts[1])
            first.cancel()
            await asyncio.wait([first])

    asyncio.run(scene())


def test_a_fetch_that_is_called_off_leaves_nothing_and_the_next_one_completes_it(tmp_path, monkeypatch):
    called_off = threading.Event()

    def half(peer, file, size, *_):
        peer.sendfile(file, 0, size // 2)
        assert called_off.wait(BOUND_S)
        return False

    async def scene():
        async with Pool(tmp_path, 2) as pool:
            monkeypatch.setattr("launcher.copies.server.send_file", half)
            save_apart(pool.folders, 10, size=6_000_000)
            starts = pool.starts([0, 1])
            bringing = [asyncio.create_task(pool.replications[node].bring(starts[node])) for node in (0, 1)]
            await eventually(lambda: pool.replications[1].fetched, "a first byte")
            for task in bringing:
                task.cancel()
            await asyncio.wait(bringing, timeout=BOUND_S)
            called_off.set()
            monkeypatch.undo()
            assert all(task.cancelled() for task in bringing)
            assert not any(is_draft(name) for folder in pool.folders for name in os.listdir(folder))
            assert pool.replications[1].fetched is None
            assert await pool.bring([0, 1], generation=2) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert [held(folder, 10) for folder in pool.folders] == [names(0, 1)] * 2


def test_a_source_that_dies_in_the_middle_is_replaced_by_another(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders[:1], 10, size=80_000_000)
            await pool.bring([0, 2])
            starts = pool.starts([0, 1], generation=2, others=[2])
            bringing = [asyncio.create_task(pool.replications[node].bring(starts[node])) for node in (0, 1)]
            await eventually(lambda: pool.replications[1].fetched, "a first byte")
            await pool.replications[2]._server.close()
            await asyncio.wait(bringing, timeout=BOUND_S)
            assert [task.result() for task in bringing] == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert held(pool.folders[1], 10) == names(0)


def test_all_wait_for_the_last_one(tmp_path, monkeypatch):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save_apart(pool.folders, 10)
            starts = pool.starts([0, 1])
            slow, gate = pool.replications[1], asyncio.Event()
            fetch = slow._fetch

            async def held_up(*args):
                await gate.wait()
                await fetch(*args)

            monkeypatch.setattr(slow, "_fetch", held_up)
            bringing = [asyncio.create_task(pool.replications[node].bring(starts[node])) for node in (0, 1)]
            await eventually(lambda: held(pool.folders[0], 10) == names(0, 1), "node 0 has all")
            done, _ = await asyncio.wait(bringing, timeout=0.2)
            assert not done
            gate.set()
            await asyncio.wait(bringing, timeout=BOUND_S)
            assert [task.result() for task in bringing] == [None, None]

    asyncio.run(scene())


def test_where_none_is_whole_and_there_were_some_no_member_starts(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders, 20)
            told = await pool.bring([0, 1])
            anew = await pool.bring([0, 1], generation=2, anew=True)
            return pool, told, anew

    pool, told, anew = asyncio.run(scene())
    assert [type(error) for error in told] == [NothingToLoad] * 2
    lacks = "no checkpoint is whole: rank-00002.data of step 20 is on no node that is here"
    assert [str(error) for error in told] == [lacks, f"node 0 says: {lacks}"]
    assert anew == [None, None], "a person has said so"
    assert [held(folder, 20) for folder in pool.folders] == [None, None, names(2)]


def test_what_who_is_away_may_complete_is_passed_over_and_said(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            save_apart(pool.folders, 10)
            await pool.bring([0, 1, 2])
            save_apart(pool.folders, 20)
            assert await pool.bring([0, 1], generation=2, all_here=False) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert [held(folder, 20) for folder in pool.folders] == [names(0), names(1), names(2)]
    assert (pool.kinds(0)[-1], pool.kinds(1)[-1]) == ("checkpoint_passed_over", "checkpoint_fetched")
    assert "of step 20 some files are on no node that is here: ranks load step 10" in pool.said[0][-1].text


def test_a_commit_as_the_trainer_makes_it_is_known_for_one(tmp_path):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            await pool.bring([0])
            pool.replications[0].note(10)
            await eventually(pool.replications[0]._looking.done, "it has looked")
            assert not pool.replications[0].keeps
            save_apart(pool.folders, 20)
            pool.replications[0].note(20)
            await eventually(lambda: pool.replications[0].keeps, "it is known")

    asyncio.run(scene())
