"""The job of a learner and actors: the game, the update, who plays which episode, and kills of all of them."""

import http.client
import json
import random
import threading
from pathlib import Path

import pytest
import torch
from lab import command, kill, log_of

from jobs.actor_learner.cartpole import LONGEST, Policy, begin, is_over, move, play
from jobs.actor_learner.episodes import Episodes, serve
from jobs.actor_learner.learner import as_lists, new_policy, policy_loss, shares
from launcher.node.ranks.ports import HeldPort
from tests.sizes import SCALE, SEED
from trainer.checkpoint_files import catalog

SPEC = "jobs/actor_learner.yaml"
ACTORS = 4


@pytest.fixture
def net():
    torch.manual_seed(1)
    return new_policy()


def policy_of(net):
    return Policy(**json.loads(json.dumps(as_lists(net))))


# -- the game


def test_a_push_from_rest_moves_the_cart_and_tips_the_pole_as_in_the_usual_cartpole():
    first = move((0.0, 0.0, 0.0, 0.0), 1)
    assert first == pytest.approx((0.0, 0.19512195, 0.0, -0.29268293))
    assert move(first, 1) == pytest.approx((0.00390244, 0.39024390, -0.00585366, -0.58536585))


def test_left_is_the_mirror_of_right():
    state = begin(random.Random(3))
    mirrored = tuple(-one for one in state)
    assert move(mirrored, 0) == pytest.approx(tuple(-one for one in move(state, 1)))


@pytest.mark.parametrize(
    ("state", "over"),
    [
        ((2.4, 0, 0, 0), False),
        ((-2.41, 0, 0, 0), True),
        ((0, 0, 0.209, 0), False),
        ((0, 0, -0.21, 0), True),
    ],
)
def test_an_episode_is_over_where_the_pole_leans_or_the_track_ends(state, over):
    assert is_over(state) == over


def test_an_episode_follows_from_weights_seed_step_and_number(net):
    one = play(policy_of(net), 1, 2, 3)
    assert play(policy_of(net), 1, 2, 3) == one
    others = [play(policy_of(net), *words) for words in ((2, 2, 3), (1, 3, 3), (1, 2, 4))]
    assert all(other != one for other in others)


def test_a_pole_that_stands_ends_its_episode_after_the_longest_time():
    upright = Policy([(0.05, 0.3, 3.0, 1.0)], [0.0], [30.0], 0.0)  # pushes to where the pole leans
    states, pushes = play(upright, 1, 0, 0)
    assert len(states) == len(pushes) == LONGEST


# -- the update


def test_actors_play_by_the_weights_that_the_learner_has(net):
    states = [begin(random.Random(seed)) for seed in range(5)]
    theirs = [policy_of(net).log_odds(state) for state in states]
    assert theirs == pytest.approx(net(torch.tensor(states)).squeeze(1).tolist(), abs=1e-6)


def test_the_loss_of_all_ranks_together_is_that_of_one(net):
    played = [play(policy_of(net), 1, 0, number) for number in range(5)]
    [whole] = shares(played, 1)
    parts = [policy_loss(net, *share).item() for share in shares(played, 2)]
    assert sum(parts) == pytest.approx(policy_loss(net, *whole).item(), abs=1e-6)


def test_a_push_that_is_worth_more_than_others_becomes_more_likely(net):
    states = torch.tensor([begin(random.Random(1))] * 2)
    before = net(states)[0].item()
    policy_loss(net, states, torch.tensor([1.0, 0.0]), torch.tensor([1.0, -1.0])).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert net(states)[0].item() > before


# -- who plays which episode


@pytest.fixture
def served():
    episodes, port = Episodes(), HeldPort("127.0.0.1")
    server = serve(episodes, f"127.0.0.1:{port.number}")
    yield episodes, lambda: http.client.HTTPConnection("127.0.0.1", port.number, timeout=30)
    server.shutdown()
    server.server_close()
    port.release()


def next_work(actor, done=None):
    """Post the finished work to the learner, and return its JSON answer."""
    actor.request("POST", "/", json.dumps(done))
    return json.loads(actor.getresponse().read())


def played(asked):
    return {"step": asked["step"], "number": asked["number"], "episode": asked["number"] * 100}


def collect(episodes, step, count, found):
    thread = threading.Thread(target=lambda: found.append(episodes.ask_for(step, "weights", count)), daemon=True)
    thread.start()
    return thread


def test_an_episode_whose_actor_goes_is_played_by_another(served):
    episodes, connect = served
    found = []
    learner = collect(episodes, 7, 2, found)
    gone, stays = connect(), connect()
    assert next_work(gone) == {"step": 7, "number": 0, "policy": "weights"}
    second = next_work(stays)
    gone.close()
    again = next_work(stays, played(second))
    assert (again["step"], again["number"]) == (7, 0)
    stays.request("POST", "/", json.dumps(played(again)))
    learner.join()
    assert found == [[0, 100]]
    stays.close()


def test_an_episode_of_a_step_that_is_over_is_dropped(served):
    episodes, connect = served
    found = []
    learner = collect(episodes, 7, 1, found)
    actor = connect()
    asked = next_work(actor, {"step": 6, "number": 0, "episode": "old"})
    actor.request("POST", "/", json.dumps(played(asked)))
    learner.join()
    assert found == [[0]]
    actor.close()


def test_however_often_actors_go_each_step_has_all_its_episodes():
    episodes, chance, found, held = Episodes(), random.Random(SEED), [], []
    for step in range(20):
        learner = collect(episodes, step, 8, found)
        while learner.is_alive():
            if episodes.waiting and len(held) < ACTORS:
                held.append(episodes.take()[:2])
            elif held:
                at, number = held.pop(chance.randrange(len(held)))
                if chance.random() < 0.5:
                    episodes.give_back(at, number)
                else:
                    episodes.deliver(at, number, (at, number))
    assert found == [[(step, number) for number in range(8)] for step in range(20)]


# -- the whole job


def submit(checkout, steps, *more):
    words = (f"roles.learner.run.args.steps={steps}", "roles.learner.run.args.episodes=8", *more)
    return checkout.submit(SPEC, *(word for one in words for word in ("--set", one)))


def newest_pid(folder, rank=0):
    paths = sorted(folder.glob(f"attempts/*/node-00/rank-{rank:03d}.json"))
    return json.loads(paths[-1].read_text())["process"]["pid"] if paths else None


def test_an_actor_is_killed_and_the_learner_goes_on(checkout):
    run = submit(checkout, 1_000_000)
    actor = checkout.run_dir(run) / "roles" / "actors-1"
    checkout.until_step(run, 3)
    before = checkout.until("actor 1", lambda: newest_pid(actor))
    step = checkout.read_state(run)["step"]
    assert kill(before)

    def again():
        return newest_pid(actor) != before and json.loads((actor / "state.json").read_text()).get("step")

    checkout.until("episodes of actor 1 again", again)
    checkout.until_step(run, step + 5)
    status = checkout.status(run)
    assert (status["generation"], status["restarts"]["total"]) == (1, 0)
    assert {name: role["restarts"]["total"] for name, role in status["roles"].items()} == {
        f"actors-{number}": int(number == 1) for number in range(ACTORS)
    }
    checkout.launch("cancel", run)


def newest_whole(folder):
    """The step of the newest checkpoint, every byte of which has been read."""
    saved = catalog.entries(folder / "checkpoints")
    return catalog.verify(saved[-1]).step if saved else 0


def kinds_of_processes(checkout, run):
    """The processes of a run by what they are: `roles/actors zygote.log`, `supervisor`, ..."""
    found, folder = {}, checkout.run_dir(run)
    for pid in checkout.processes(folder):
        log = Path(log_of(pid).removeprefix(f"{folder}/"))
        part = str(log.parent).partition("/attempts")[0].partition("/logs")[0]
        what = "supervisor" if b"launcher.supervisor" in command(pid) else f"{part[: len('roles/actors')]} {log.name}"
        found.setdefault(what, []).append(pid)
    return found


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_whatever_is_killed_of_whichever_role_the_learner_ends_with_the_same_weights(checkout):
    chance, kills = random.Random(SEED), 25 * SCALE
    budget = "{restarts: unlimited, backoff: 0s..1s}"
    budgets = [f"recovery.{cause}={budget}" for cause in ("killed", "node_lost", "communication", "launcher_fault")]
    words = (10 * kills + 50, *budgets, "recovery.no_progress=off", "roles.learner.checkpoint.every=5 steps")
    whole = checkout.wait(submit(checkout, *words), timeout=1200)
    run = submit(checkout, *words)
    folder, struck, newest = checkout.run_dir(run), [], 0
    for _ in range(kills):
        if chance.random() < 0.7:  # else something else is killed while the run is still getting over it
            step = checkout.until("the learner at work", lambda: steps_of(checkout, run, struck)) + chance.randrange(5)
            checkout.until(f"step {step} after {struck[-3:]}", lambda step=step: steps_of(checkout, run, struck) > step)
        kinds = checkout.until("a process", lambda: kinds_of_processes(checkout, run))
        struck.append(chance.choice(sorted(kinds)))
        kill(chance.choice(sorted(kinds[struck[-1]])))
        before, newest = newest, newest_whole(folder)
        assert newest >= before, struck
    status = checkout.wait(run, timeout=1200)
    assert (status["state"], status["step"], status["checkpoint"]) == ("succeeded", words[0], words[0]), struck
    assert status["fingerprint"] == whole["fingerprint"], struck
    checkout.until("the end of all roles", lambda: not checkout.processes(folder))


def steps_of(checkout, run, struck):
    """The step of the learner while it works; a run whose supervisor was killed goes on once somebody looks at it."""
    if "supervisor" in struck and "supervisor" not in kinds_of_processes(checkout, run):
        checkout.launch("status", run)
    state = checkout.read_state(run)
    assert state["state"] not in ("succeeded", "failed", "cancelled"), (state, struck)
    return state["step"] if state["state"] == "running" and state["step"] else 0
