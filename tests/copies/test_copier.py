"""Second copies in the background."""

import asyncio
import os
import shutil
import socket
import time
from types import SimpleNamespace

from replication_lab import BOUND_S, Pool, content, held, keep_best, names, save_apart

from launcher.copies import copier as copiers
from launcher.wire.messages import Copied, Noted
from tests.waits import eventually
from trainer.checkpoint_files import commit
from trainer.checkpoint_files.layout import data_name, folder_name


def copied(pool, node):
    return [message.step for message in pool.said[node] if isinstance(message, Copied)]


def failed(pool, node):
    return [message.text for message in pool.said[node] if isinstance(message, Noted)]


async def begun(pool, members, **how):
    assert await pool.bring(members, **how) == [None] * len(members)


def test_each_nodes_own_files_go_to_the_next_one_and_no_others(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3) as pool:
            await begun(pool, [0, 1, 2], ranks_each=2)
            save_apart(pool.folders, 20, size=2_000_000, ranks_each=2)
            for replication in pool.replications:
                replication.note(20)
                replication.note(20)
            await eventually(lambda: all(copied(pool, node) for node in range(3)), "all copies")
            return pool

    pool = asyncio.run(scene())
    assert [held(folder, 20) for folder in pool.folders] == [names(0, 1, 4, 5), names(2, 3, 0, 1), names(4, 5, 2, 3)]
    assert pool.said == [[Copied(node, 1, 20)] for node in range(3)]


def test_the_best_one_has_second_copies_too(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            await begun(pool, [0, 1])
            save_apart(pool.folders, 10)
            keep_best(pool.folders, 10)
            save_apart(pool.folders, 20)
            for replication in pool.replications:
                replication.note(20)
            await eventually(
                lambda: all(held(folder, 10, "best") == names(0, 1) for folder in pool.folders), "all copies"
            )
            shutil.rmtree(pool.folders[1])
            assert await pool.bring([0, 1], generation=2) == [None, None]
            return pool

    pool = asyncio.run(scene())
    assert held(pool.folders[1], 10, "best") == names(0, 1)
    assert held(pool.folders[1], 10) is None, "older ones are nobody's to bring"
    assert held(pool.folders[1], 20) == names(0, 1)


def test_who_is_alone_copies_nothing(tmp_path):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            await begun(pool, [0])
            save_apart(pool.folders, 20)
            pool.replications[0].note(20)
            assert pool.replications[0]._copier._working is None
            return pool.said

    assert asyncio.run(scene()) == [[]]


def test_the_oldest_goes_first_and_pruned_ones_are_passed_over(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            await begun(pool, [0, 1])
            for step in (10, 20, 30, 40):
                save_apart(pool.folders, step)
            for folder in pool.folders:
                commit.remove([folder / folder_name(20)])
            for step in (10, 20, 30, 40):
                pool.replications[0].note(step)
            await eventually(lambda: len(copied(pool, 0)) == 3, "three copies")
            return pool

    pool = asyncio.run(scene())
    assert copied(pool, 0) == [10, 30, 40]
    assert failed(pool, 0) == []
    assert held(pool.folders[1], 20) is None, "a copy must not bring back what was pruned"


def test_what_was_pruned_at_the_other_end_alone_is_no_failure(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            await begun(pool, [0, 1])
            for step in (10, 20):
                save_apart(pool.folders, step)
            commit.remove([pool.folders[1] / folder_name(10)])
            pool.replications[0].note(10)
            pool.replications[0].note(20)
            await eventually(lambda: copied(pool, 0), "the other one")
            await eventually(lambda: not pool.replications[0]._copier._waiting, "the first one given up")
            return pool

    pool = asyncio.run(scene())
    assert copied(pool, 0) == [20]
    assert failed(pool, 0) == []
    assert held(pool.folders[1], 10) is None


def test_a_report_of_something_that_is_no_checkpoint_of_ours_is_passed_over(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            await begun(pool, [0, 1])
            pool.replications[0].note(7)
            save_apart(pool.folders, 20)
            pool.replications[0].note(20)
            await eventually(lambda: copied(pool, 0), "the copy")
            return pool

    assert failed(asyncio.run(scene()), 0) == []


def test_a_copy_that_fails_is_tried_again_and_then_said_once(tmp_path, monkeypatch):
    async def scene():
        async with Pool(tmp_path, 2, give_up_s=2, copy_retry_s=0.05) as pool:
            await begun(pool, [0, 1])
            save_apart(pool.folders, 20)
            tries = []
            monkeypatch.setattr(copiers, "time", SimpleNamespace(monotonic=lambda: len(tries)))  # a second each

            def full(kind, manifest, name, chunks):
                tries.append(name)
                next(iter(chunks))
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(pool.replications[1]._files, "receive", full)
            pool.replications[0].note(20)
            await eventually(lambda: failed(pool, 0), "the word of it")
            return pool, tries

    pool, tries = asyncio.run(scene())
    assert set(tries) == {data_name(0)}
    assert len(tries) == 3
    assert len(failed(pool, 0)) == 1
    assert failed(pool, 0)[0].startswith("step 20: the files of node 0 have no second copy on node 1")
    assert "No space left on device" in failed(pool, 0)[0]
    assert copied(pool, 0) == []


def test_one_that_fails_makes_room_for_a_newer_one(tmp_path, monkeypatch):
    async def scene():
        async with Pool(tmp_path, 2, give_up_s=60) as pool:
            await begun(pool, [0, 1])
            save_apart(pool.folders, 20)
            (pool.folders[0] / folder_name(20) / data_name(0)).write_bytes(content(7, 7))
            files, tries = pool.replications[1]._files, []
            receive = files.receive
            monkeypatch.setattr(files, "receive", lambda *what: tries.append(1) or receive(*what))
            pool.replications[0].note(20)
            await eventually(lambda: tries, "a first try, in vain, of a minute's")
            save_apart(pool.folders, 30)
            pool.replications[0].note(30)
            assert await pool.replications[0].settle() == ""
            return pool

    pool = asyncio.run(scene())
    assert copied(pool, 0) == [30]
    assert len(failed(pool, 0)) == 1


def test_a_full_disk_is_heard_of_before_all_was_sent(tmp_path, monkeypatch):
    async def scene():
        async with Pool(tmp_path, 2, limit=1_000_000, give_up_s=0) as pool:
            await begun(pool, [0, 1])
            save_apart(pool.folders, 20, size=50_000_000)

            def full(kind, manifest, name, chunks):
                next(iter(chunks))
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(pool.replications[1]._files, "receive", full)
            began = time.monotonic()
            pool.replications[0].note(20)
            await eventually(lambda: failed(pool, 0), "the word of it")
            return pool, time.monotonic() - began

    pool, seconds = asyncio.run(scene())
    assert "No space left on device" in failed(pool, 0)[0]
    assert seconds < 45, "at this pace the whole file would have taken 50 s"


def test_a_target_that_comes_back_gets_its_copy(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2, give_up_s=BOUND_S, copy_retry_s=0.2) as pool:
            await begun(pool, [0, 1])
            save_apart(pool.folders, 20)
            server = pool.replications[1]._server
            port = server.port
            await server.close()
            again = socket.create_server(("127.0.0.2", port))
            again.setblocking(False)
            pool.replications[0].note(20)
            in_vain, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(again), BOUND_S)
            in_vain.close()
            again.close()
            await server._listener.start("127.0.0.2", port)
            await eventually(lambda: copied(pool, 0), "the copy")
            return pool

    assert held(asyncio.run(scene()).folders[1], 20) == names(0, 1)


def test_a_damaged_file_does_not_become_a_copy(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2, copy_retry_s=0.01) as pool:
            await begun(pool, [0, 1])
            save_apart(pool.folders, 20)
            (pool.folders[0] / folder_name(20) / data_name(0)).write_bytes(content(7, 7))
            pool.replications[0].note(20)
            await eventually(lambda: failed(pool, 0), "the word of it")
            return pool

    pool = asyncio.run(scene())
    assert "not what was written" in failed(pool, 0)[0]
    assert held(pool.folders[1], 20) == names(1)


def test_a_disk_that_cannot_be_read_is_said_and_does_not_end_the_copying(tmp_path, monkeypatch):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            await begun(pool, [0, 1])
            save_apart(pool.folders, 20)
            files = pool.replications[0]._files
            look_at = files.look_at

            def broken(kind, step):
                if step == 10:
                    raise OSError(5, "Input/output error")
                return look_at(kind, step)

            monkeypatch.setattr(files, "look_at", broken)
            pool.replications[0].note(10)
            await eventually(lambda: failed(pool, 0), "the word of it")
            pool.replications[0].note(20)
            await eventually(lambda: copied(pool, 0), "the copy")
            return pool

    assert "Input/output error" in failed(asyncio.run(scene()), 0)[0]


def test_a_new_generation_cuts_off_what_was_being_copied_and_aims_anew(tmp_path):
    async def scene():
        async with Pool(tmp_path, 3, limit=4_000_000) as pool:  # for seconds: a busy machine is to see it under way
            await begun(pool, [0, 1])
            save_apart(pool.folders[:2], 20, size=20_000_000)
            pool.replications[0].note(20)
            drafts = lambda: [name for name in os.listdir(pool.folders[1]) if name.startswith(".tmp-")]  # noqa: E731
            await eventually(drafts, "the copy has begun")
            await begun(pool, [0, 2], generation=2, others=[1])
            await eventually(lambda: not drafts(), "it is cut off")
            pool.replications[0].note(20)
            await eventually(lambda: copied(pool, 0), "the other copy")
            return pool

    pool = asyncio.run(scene())
    assert held(pool.folders[1], 20) == names(1)
    assert Copied(0, 2, 20) in pool.said[0]


def test_it_has_settled_once_all_is_copied(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2, limit=10_000_000) as pool:
            await begun(pool, [0, 1])
            await pool.replications[0].settle()  # nothing waits
            save_apart(pool.folders, 20, size=10_000_000)
            pool.replications[0].note(20)
            await pool.replications[0].settle()
            return pool

    pool = asyncio.run(scene())
    assert copied(pool, 0) == [20]
    assert held(pool.folders[1], 20) == names(0, 1)


def test_it_has_settled_where_nobody_is_next_and_where_a_copy_was_given_up(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2, copy_retry_s=0.01) as pool:
            await begun(pool, [0])
            pool.replications[0].note(20)
            await pool.replications[0].settle()
            await begun(pool, [0, 1], generation=2)
            save_apart(pool.folders, 20)
            await pool.replications[1].close()
            pool.replications[0].note(20)
            return pool, await pool.replications[0].settle()

    pool, problem = asyncio.run(scene())
    assert "no second copy on node 1" in problem
    assert failed(pool, 0) == [problem]


def test_the_limit_holds(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2, limit=10_000_000) as pool:
            await begun(pool, [0, 1])
            save_apart(pool.folders, 20, size=10_000_000)
            began = time.monotonic()
            pool.replications[0].note(20)
            await eventually(lambda: copied(pool, 0), "the copy")
            return time.monotonic() - began

    seconds = asyncio.run(scene())
    assert seconds >= 0.95
    assert seconds < 60
