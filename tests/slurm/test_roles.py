"""Several programs in one job: each on its nodes, with its GPUs; they find each other, and restart apart."""

import json
import random
import shutil

import pytest
from lab import all_pids, command, kill, log_of, parent
from runs import job_of, own, record, strike, take_all_nodes

from launcher.cli.shipped import shipped
from tests.role_programs import LEARNER, SERVER, is_further
from tests.sizes import NIGHTLY, SEED

pytestmark = pytest.mark.nightly

SPEC = """
name: three
recovery: {grace: 5s, lease: 3s, killed: unlimited, node_lost: unlimited}
slurm: {partition: %s}
roles:
  learner:
    main: true
    after: reward
    run: {script: learner.py}
    resources: {ranks_per_node: 2, cpus_per_rank: 1}
  actors: {run: {script: server.py}, resources: {nodes: 2, gpus_per_node: 1, cpus_per_rank: 1}, restart: %s}
  reward:
    colocate: actors
    run: {script: server.py}
    ready: {path: /health}
    resources: {gpus_per_node: 1, cpus_per_rank: 1}
"""


@pytest.fixture
def three(desk):
    """Submits a run of three programs, and waits until the main one works."""
    desk.script("learner.py", LEARNER)
    desk.script("server.py", SERVER)

    def submit(restart="alone", partition="main"):
        run = desk.submit(desk.spec(SPEC % (partition, restart)), "--on", "slurm")
        desk.until_step(run, 3)
        return run

    return submit


def said_by(desk, run, part=None):
    """Return the first line that each process of a role wrote; without a name, of the main role."""
    folder = desk.run_dir(run) if part is None else desk.run_dir(run) / "roles" / part
    logs = sorted((folder / "logs").glob("*/rank-*.log"))
    return [json.loads(log.read_text().splitlines()[0]) for log in logs if log.read_text()]


def ranks_of(desk, run, part):
    folder = desk.run_dir(run) / "roles" / part
    return [pid for pid in desk.processes(folder) if "/rank-" in log_of(pid)]


def finish(desk, run):
    """The main role has done enough."""
    (desk.run_dir(run) / "code" / "enough").touch()
    return desk.wait(run)


def nothing_is_left(desk, run):
    desk.until("the end of all roles", lambda: not desk.processes(desk.run_dir(run)))


@pytest.mark.daily
def test_roles_are_on_their_nodes_with_their_gpus_and_end_with_the_main_one(desk, slurm, three):
    run = three()
    names, addresses = [node.name for node in slurm.nodes], [node.address for node in slurm.nodes]
    learner = said_by(desk, run)
    assert [(one["host"], one["RANK"], one["WORLD_SIZE"]) for one in learner] == [
        (names[0], "0", "2"),
        (names[0], "1", "2"),
    ]
    actors = learner[0]["LAUNCH_ADDR_ACTORS"].split(",")
    assert [address.partition(":")[0] for address in actors] == addresses[1:3]
    (first,), (second,), (reward,) = (said_by(desk, run, part) for part in ("actors-0", "actors-1", "reward"))
    assert [(one["host"], one["LAUNCH_ROLE_RANK"]) for one in (first, second)] == [(names[1], "0"), (names[2], "1")]
    assert reward["host"] == names[1]
    seen = [one["gpus"] for one in (*learner, reward, first, second)]
    assert seen == ["", "", "1", "0", "0"]
    assert [address.partition(":")[2] for address in actors] == [first["LAUNCH_PORT"], second["LAUNCH_PORT"]]
    assert {one["state"] for one in desk.status(run)["roles"].values()} == {"running"}
    assert '"LAUNCH_ROLE": "actors"' in desk.launch("logs", run, "--role", "actors").stdout
    seen = desk.launch("exec", run, "--role", "actors", "--rank", "1", "--", "sh", "-c", "hostname; echo $LAUNCH_ROLE")
    assert seen.stdout.split() == [names[2], "actors"]
    found = json.loads(desk.launch("stacks", run, "--role", "reward", "--json").stdout)
    assert [(one["rank"], one["problem"]) for one in found] == [(0, "")]
    status = finish(desk, run)
    assert (status["state"], status["world_size"]) == ("succeeded", 2)
    assert {one["state"] for one in status["roles"].values()} == {"cancelled"}
    nothing_is_left(desk, run)


@pytest.mark.daily
def test_an_actor_and_its_agent_come_back_while_the_learner_goes_on(desk, three):
    run = three()
    (before,) = said_by(desk, run, "actors-1")
    [rank] = ranks_of(desk, run, "actors-1")
    strike(rank)
    again = desk.until("actor 1 again", lambda: (found := said_by(desk, run, "actors-1"))[1:] and found)[1]
    assert (again["host"], again["LAUNCH_PORT"]) == (before["host"], before["LAUNCH_PORT"])
    folder = desk.run_dir(run) / "roles" / "actors-0"
    strike(own(desk, run, f"launcher.node\0{folder}\0{1}\0{0}")[0])
    desk.until("actor 0 again", lambda: said_by(desk, run, "actors-0")[1:])
    step = desk.read_state(run)["step"]
    desk.until_step(run, step + 3)
    status = finish(desk, run)
    assert [status["roles"][name]["restarts"]["total"] for name in ("actors-0", "actors-1")] == [1, 1]
    assert (status["state"], status["restarts"]["total"], status["generation"]) == ("succeeded", 0, 1)
    nothing_is_left(desk, run)


def test_a_learner_that_is_killed_starts_again_and_the_others_stay(desk, three):
    run = three("role")
    actors = ranks_of(desk, run, "actors")
    main = [pid for pid in desk.processes(desk.run_dir(run)) if f"{desk.run_dir(run)}/logs/" in log_of(pid)]
    strike(main[0])
    desk.until("the learner again", lambda: desk.read_state(run)["generation"] == 2)
    desk.until_step(run, 3)
    assert sorted(ranks_of(desk, run, "actors")) == sorted(actors)
    assert finish(desk, run)["restarts"]["total"] == 1


@pytest.mark.daily
def test_a_run_that_is_preempted_goes_on_with_all_its_roles(desk, slurm, three):
    run = three("role", "graceful")
    job = job_of(desk, run)
    take_all_nodes(slurm)
    desk.until("the end of the first attempt", lambda: record(desk, run, "exit.json"))
    desk.until("the second attempt", lambda: record(desk, run, "handle.json", 2))
    desk.until("all roles again", lambda: len(said_by(desk, run, "actors")) >= 4 and said_by(desk, run, "reward")[1:])
    status = finish(desk, run)
    assert (status["state"], status["attempt"], status["job"]) == ("succeeded", 2, job)
    nothing_is_left(desk, run)


def test_a_batch_process_that_is_killed_is_a_new_attempt_of_all_roles(desk, three):
    run = three("role")
    words = f"launcher.places.batch.job.batch_process:BatchSupervisor\0{desk.run_dir(run)}\0slurm\0".encode()
    found = [pid for pid in all_pids() if words in command(pid)]
    strike(next(pid for pid in found if parent(pid) not in found))
    desk.until("the second attempt", lambda: record(desk, run, "handle.json", 2))
    desk.until("all roles again", lambda: len(said_by(desk, run, "actors")) >= 4 and said_by(desk, run, "reward")[1:])
    status = finish(desk, run)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    nothing_is_left(desk, run)


@pytest.mark.daily
def test_a_cancel_leaves_nothing_of_any_role(desk, slurm, three):
    run = three()
    desk.launch("cancel", run)
    assert desk.status(run)["state"] == "cancelled"
    desk.until("the job's end", lambda: not slurm.ask("squeue", "--noheader").strip())
    assert not desk.processes(desk.run_dir(run))


@pytest.mark.daily
def test_the_dry_run_shows_the_nodes_of_each_role_and_too_many_are_refused(desk, slurm):
    desk.script("learner.py", LEARNER)
    desk.script("server.py", SERVER)
    spec = desk.spec(SPEC % ("main", "role"))
    shown = desk.launch("submit", spec, "--on", "slurm", "--dry-run").stdout
    first, second = shown.split("#SBATCH hetjob\n")
    assert "#SBATCH --nodes=1\n" in first and "#SBATCH --gres" not in first and "#SBATCH --cpus-per-task=2" in first
    assert "#SBATCH --nodes=2\n" in second and "#SBATCH --gres=gpu:2" in second
    shown = desk.launch("submit", spec, "--on", "slurm", "--dry-run", "--set", "slurm.partition=main,graceful").stdout
    assert shown.count("#SBATCH --partition=main,graceful") == 2 and "Slurm could start it at" in shown
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert any(row.endswith("server.py 2 nodes (1-2), 2 ranks GPUs 0") for row in rows), rows
    assert any(row.endswith("server.py 1 node (1), 1 rank GPUs 1") for row in rows), rows
    said = desk.launch("submit", spec, "--on", "slurm", "--set", "roles.actors.resources.nodes=4", check=2).stderr
    assert "roles: ask for 5 nodes together, but there are 4" in said, said


def test_when_a_node_of_the_actors_is_lost_the_whole_run_goes_on_elsewhere(desk, slurm, three):
    run = three("role")
    slurm.nodes[1].power_off()
    desk.until("the second attempt", lambda: record(desk, run, "handle.json", 2))
    desk.until("all roles again", lambda: len(said_by(desk, run, "actors")) >= 4 and said_by(desk, run, "reward")[1:])
    assert finish(desk, run)["state"] == "succeeded"
    hosts = {one["host"] for one in said_by(desk, run, "actors")[2:]}
    assert slurm.nodes[1].name not in hosts and len(hosts) == 2
    nothing_is_left(desk, run)


def test_with_one_actor_all_roles_start_again_in_the_same_job(desk, three):
    run = three("all")
    strike(ranks_of(desk, run, "actors")[0])
    desk.until("the second attempt", lambda: record(desk, run, "handle.json", 2))
    desk.until("all roles again", lambda: len(said_by(desk, run, "actors")) >= 4 and said_by(desk, run, "reward")[1:])
    desk.until("the learner again", lambda: desk.read_state(run)["state"] == "running")
    assert job_of(desk, run, 1) == job_of(desk, run, 2)
    status = finish(desk, run)
    assert (status["state"], status["attempt"], status["restarts"]["total"]) == ("succeeded", 2, 0), status
    nothing_is_left(desk, run)


def test_actors_that_follow_the_learner_start_again_with_it_at_their_addresses(desk, three):
    run = three("role, follows: learner")
    before = said_by(desk, run, "actors")
    strike(next(pid for pid in desk.processes(desk.run_dir(run)) if f"{desk.run_dir(run)}/logs/" in log_of(pid)))
    again = desk.until("both actors again", lambda: (found := said_by(desk, run, "actors"))[3:] and found)[2:]
    assert [one["LAUNCH_PORT"] for one in again] == [one["LAUNCH_PORT"] for one in before]
    assert finish(desk, run)["state"] == "succeeded"
    nothing_is_left(desk, run)


@pytest.mark.parametrize(("restart", "actors"), [("alone", ("actors-0", "actors-1")), ("role", ("actors",))])
def test_whatever_is_killed_of_whichever_role_the_run_ends_well(desk, three, restart, actors):
    run = three(restart)
    draw, folder, struck = random.Random(SEED), desk.run_dir(run), []
    for _ in range(20 if NIGHTLY else 5):
        pid = draw.choice(desk.processes(folder))
        struck.append(f"{command(pid)[-120:]!r} of {log_of(pid).removeprefix(str(folder))}")
        kill(pid)
        now = desk.read_state(run)
        desk.until(f"steps after {struck[-1]}", lambda now=now: is_further(desk.read_state(run), now))
    desk.until("all roles at work", lambda: all(ranks_of(desk, run, part) for part in (*actors, "reward")))
    assert finish(desk, run)["state"] == "succeeded", struck
    nothing_is_left(desk, run)


def test_the_shipped_learner_ends_with_the_undisturbed_weights_though_killed_and_preempted(desk, slurm):
    root = shipped("jobs").parent
    for name in ("jobs", "templates"):
        shutil.copytree(root / name, desk.project / name)
    steps = ("--set", "roles.learner.run.args.steps=40", "--set", "roles.learner.checkpoint.every=5 steps")
    undisturbed = desk.wait(desk.submit("jobs/actor_learner.yaml", *steps))["fingerprint"]
    apart = ("--set", "roles.actors.resources.nodes=2", "--set", "roles.actors.resources.ranks_per_node=2")
    run = desk.submit("jobs/actor_learner.yaml", "--on", "slurm", *steps, *apart, "--set", "slurm.partition=graceful")
    desk.until_step(run, 6)
    strike(ranks_of(desk, run, "actors-3")[0])
    strike(next(pid for pid in desk.processes(desk.run_dir(run)) if f"{desk.run_dir(run)}/logs/" in log_of(pid)))
    desk.until("a second generation", lambda: desk.read_state(run)["generation"] == 2)
    desk.until_step(run, 8)
    take_all_nodes(slurm)
    desk.until("the end of the first attempt", lambda: record(desk, run, "exit.json"))
    status = desk.wait(run)
    assert (status["state"], status["attempt"], status["step"]) == ("succeeded", 2, 40)
    assert status["fingerprint"] == undisturbed
    nothing_is_left(desk, run)
