"""Records of the coordinator's host that a disk has damaged: where it is found, and who counts."""

import asyncio

import msgspec
import pytest
from run_folder import RunFolder, plan_of

from launcher.agent import coordinator_server
from launcher.agent.coordinator_server import CoordinatorServer, who_counts
from launcher.rundir.durable import Damaged, make_dir, read_record, read_sealed, write_sealed
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Endpoint, Rolls

BOUND_S = 100.0
ALL, TWO = Rolls("all", ((0, 1, 2),)), Rolls("two", ((0, 1, 2), (0, 1)))


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_bytes(path):
    path.write_bytes(path.read_bytes().replace(b":", b"\xba"))


def another_port(path):
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(read_record(path, Endpoint), port=1)))


def gone(path):
    path.unlink()


def another_host(path):
    """The last bit of a number: still a record, and another host would count."""
    path.write_bytes(path.read_bytes().replace(b"0,1]", b"0,3]"))


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    for pause in ("_KNOWN_S", "_ROLLS_S"):
        monkeypatch.setattr(coordinator_server, pause, 0.01)
    attempt = RunFolder(tmp_path / "run").run.attempt(1)
    make_dir(attempt.path)
    return attempt


def served(attempt, check):
    """A coordinator of three hosts that elect it, all of which count, while `check` has it do something."""
    run = RunDir(attempt.path.parent.parent)
    plan = msgspec.structs.replace(plan_of(run.path, nodes=3), disks_apart=True, elects=True)
    write_sealed(attempt.rolls, ALL)

    async def serve():
        server = CoordinatorServer(run, attempt, plan, "127.0.0.1", "5e" * 32)
        await server.start()
        try:
            async with asyncio.timeout(BOUND_S):
                await check(server)
        finally:
            await server.close()

    asyncio.run(serve())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("damage", [zeros, cut, other_bytes, another_port, gone])
def test_where_it_is_found_is_written_again(attempt, damage):
    """An agent that came anew found nobody, and its node was lost to the run."""

    async def check(_server):
        right = attempt.endpoint.read_bytes()
        damage(attempt.endpoint)
        await until(lambda: attempt.endpoint.exists() and attempt.endpoint.read_bytes() == right)

    served(attempt, check)


@pytest.mark.parametrize("damage", [zeros, cut, other_bytes, another_host, gone])
def test_a_damaged_word_on_who_counts_changes_nothing_and_the_next_whole_one_is_heard(attempt, damage, monkeypatch):
    looks, heard, handle = [], [], CoordinatorServer._handle

    def look(path, kind):
        looks.append(path)
        return read_sealed(path, kind)

    def hear(server, event):
        heard.append(event)
        handle(server, event)

    async def check(server):
        word = attempt.path / "word.json"
        write_sealed(word, TWO)
        damage(word)
        attempt.rolls.unlink()
        if word.exists():
            word.rename(attempt.rolls)
        looked = len(looks)
        await until(lambda: len(looks) > looked + 3)
        assert server._coordinator.counts_by(ALL) and not any(isinstance(one, Rolls) for one in heard)
        write_sealed(attempt.rolls, TWO)
        await until(lambda: TWO in heard)

    monkeypatch.setattr(coordinator_server, "read_sealed", look)
    monkeypatch.setattr(CoordinatorServer, "_handle", hear)
    served(attempt, check)


@pytest.mark.parametrize("damage", [zeros, cut, other_bytes, another_host])
def test_nobody_starts_to_lead_by_a_damaged_word(attempt, damage):
    plan = msgspec.structs.replace(plan_of(attempt.path, nodes=3), disks_apart=True, elects=True)
    write_sealed(attempt.rolls, TWO)
    damage(attempt.rolls)
    with pytest.raises(Damaged, match=r"rolls\.json: "):
        who_counts(attempt, plan)
