"""wait, cancel, resume on folders; with real processes they are tested in tests/local."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from run_folder import RunFolder, before_this_boot, dead_process

from launcher.run.records import NodeState
from launcher.states import Cause, State

HERE = tuple(
    NodeState(node, f"127.0.0.{node + 1}", "up" if node < 2 else "spare", (node,) * (node < 2), host)
    for node, host in enumerate(("gpu00", "gpu01", "gpu02", "gpu03"))
)


def test_wait_gives_the_runs_exit_code_and_its_final_line(desk):
    desk.run().succeeded()
    assert desk.launch("wait", "last").stdout == "job-abcd succeeded\n"
    desk.run("bad-bbbb").failed(submitted_at=9e9)
    done = desk.launch("wait", "last", check=10)
    assert done.stdout == "bad-bbbb failed (user_error)\n"
    assert done.stderr == "next: mend the code, then launch resume bad-bbbb --code\n"


def test_wait_shows_no_control_that_a_record_holds(desk):
    state = desk.run("bad-bbbb").failed().run.state
    state.write_text(state.read_text().replace('"run":"bad-bbbb"', '"run":"bad\\u001b[2J-bbbb"'))
    done = desk.launch("wait", "last", check=10)
    assert done.stdout == "bad-bbbb failed (user_error)\n"
    assert done.stderr == "next: mend the code, then launch resume bad-bbbb --code\n"


def test_wait_for_several_gives_the_exit_code_of_the_first_that_failed(desk):
    desk.run("good-aaaa").succeeded()
    desk.run("bad-bbbb").failed()
    desk.run("lost-cccc").plan().attempt(supervisor=before_this_boot()).state()
    done = desk.launch("wait", "good", "bad", "lost", "good-aaaa", check=10)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["good-aaaa", "bad-bbbb", "lost-cccc"]
    assert desk.launch("wait", "good", "none", check=3).stdout == ""


def test_wait_of_a_lost_run(desk):
    desk.run().plan().attempt(supervisor=before_this_boot()).state()
    assert desk.launch("wait", "last", check=21).stdout.startswith("job-abcd lost: ")


def test_wait_gives_up_after_its_time(desk):
    desk.run().running()
    done = desk.launch("wait", "last", "--timeout", "0.2", check=4)
    assert done.stdout == ""
    assert "still running after 0.2 s" in done.stderr


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.CANCELLED])
def test_cancel_of_an_ended_run_says_so(desk, state):
    run = desk.run()
    run.plan().attempt(supervisor=dead_process()).end(state, exit_code=0).state(state)
    assert "already ended" in desk.launch("cancel", "last").stdout
    assert not run.run.attempt(1).stop.exists()


def test_cancel_of_several_begins_with_none_where_one_is_unknown(desk):
    for name in ("one-aaaa", "two-bbbb"):
        desk.run(name).plan().attempt(supervisor=dead_process()).end(State.SUCCEEDED, exit_code=0).state(
            State.SUCCEEDED
        )
    said = desk.launch("cancel", "one", "two", "one-aaaa").stdout
    assert [line.split()[0] for line in said.splitlines()] == ["one-aaaa", "two-bbbb"]
    assert desk.launch("cancel", "one", "none", check=3).stdout == ""


def test_resume_of_a_live_run_is_refused(desk):
    run = desk.run().running()
    done = desk.launch("resume", "last", check=4)
    assert "running" in done.stderr
    assert not run.run.attempt(2).path.exists()


def test_a_cause_that_says_the_same_is_said_once(desk):
    desk.run().plan().attempt(supervisor=dead_process()).end(State.CANCELLED, Cause.CANCELLED, 20)
    assert desk.launch("wait", "last", check=20).stdout == "job-abcd cancelled\n"


@pytest.mark.parametrize(
    ("words", "nodes", "why"),
    [
        (["7"], HERE, "job-abcd has no node '7': expected one of 0, 1, 2, 3"),
        (["0"], HERE, "node 0 of job-abcd coordinates the others, and cannot be left without ranks"),
        (["gpu02"], HERE, "node 2 of job-abcd has no ranks: it is spare"),
        (["1", "--to", "gpu00"], HERE, "node 0 of job-abcd is up, and no spare: node 2, 3 is"),
        (["1", "--to", "gpu99"], HERE, "job-abcd has no node 'gpu99'"),
        (["1"], HERE[:2], "job-abcd has no spare that is ready"),
        (["1"], (), "job-abcd has no node '1': none of its nodes is there yet"),
    ],
)
def test_move_is_refused_where_it_cannot_be(desk, words, nodes, why):
    attempt = desk.run().running(nodes=nodes).run.attempt(1)
    done = desk.launch("move", "last", *words, check=4)
    assert why in done.stderr
    assert done.stdout == ""
    assert not attempt.drain.exists()


@pytest.mark.parametrize("word", ["move", "drain"])
def test_a_node_of_a_role_beside_the_main_one_keeps_its_ranks(desk, word):
    folder = desk.run().running(nodes=HERE[:2])
    RunFolder(folder.path / "roles" / "actors").running(nodes=HERE[2:3])
    said = desk.launch(word, "last", "gpu02", check=4).stderr
    assert "gpu02 is a node of role actors, whose ranks stay on their nodes" in said, said
    assert "hint: launch cancel job-abcd" in said


@pytest.mark.parametrize("state", [State.STARTING, State.REGROUPING])
def test_move_is_refused_while_no_ranks_run(desk, state):
    desk.run().running(nodes=HERE).state(state, nodes=HERE, monotonic_s=9e9)
    assert (
        f"job-abcd is {state}: it has no ranks that could move now" in desk.launch("move", "last", "1", check=4).stderr
    )


@pytest.mark.parametrize(("kind", "code"), [("moved", 0), ("not_moved", 4)])
def test_move_asks_once_and_waits_for_the_answer(desk, kind, code):
    folder = desk.run().running(nodes=HERE)
    folder.event("an answer of before", "moved", node=1)
    drain = folder.run.attempt(1).drain
    with ThreadPoolExecutor() as meanwhile:
        words = ("gpu01", "--to", "gpu03", "--timeout", "100")
        asked = meanwhile.submit(desk.launch, "nodes", "move", "last", "--json", *words, check=code)
        while not drain.exists() and not asked.done():
            time.sleep(0.05)
        folder.event("of another node", "moved", node=2)
        folder.event("so it is", kind, node=1)
    assert json.loads(drain.read_bytes()) == {"nodes": [], "moves": [{"node": 1, "to": 3}], "why": {}}
    done = asked.result()
    if code == 0:
        assert json.loads(done.stdout) == {"run": "job-abcd", "node": 1, "moved": "so it is"}
    else:
        assert "job-abcd: so it is\n" in done.stderr


def test_what_is_asked_of_nodes_is_kept_beside_what_was_asked_before(desk):
    folder = desk.run().running(nodes=HERE)
    for words in (["move", "last", "1"], ["drain", "last", "2"], ["move", "last", "1"], ["drain", "last", "1"]):
        desk.launch(*words, "--timeout", "0", check=4)
    asked = json.loads(folder.run.attempt(1).drain.read_bytes())
    assert asked == {"nodes": [1, 2], "moves": [{"node": 1, "to": None}] * 2, "why": {}}
