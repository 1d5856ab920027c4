"""Several programs in one run on a pool: each on its hosts; they find each other, restart apart, and end together."""

import json
import shutil
import sys

import pytest
from lab import command, log_of
from saved_checkpoints import save
from ssh_desk import strike

from launcher.cli.shipped import shipped
from tests.role_programs import LEARNER, SERVER, is_further, place_of
from tests.sizes import NIGHTLY

pytestmark = pytest.mark.nightly

SPEC = """
name: three
recovery: {grace: 5s, lease: 10s, wait: 20s, killed: unlimited, node_lost: unlimited%s}
roles:
  learner:
    main: true
    after: reward
    run: {script: learner.py}
    resources: {ranks_per_node: 2}
  actors: {run: {script: server.py}, resources: {nodes: 2}, restart: %s}
  reward: {colocate: actors, run: {script: server.py}, ready: {path: /health}}
"""


def submit(desk, restart="alone", more="", *words):
    """A run of three programs on three hosts, whose main one works."""
    desk.script("learner.py", LEARNER)
    desk.script("server.py", SERVER)
    run = desk.submit(desk.spec(SPEC % (more, restart)), "--on", "pool", *words)
    desk.until_step_there(0, run, 3)
    return run


@pytest.fixture
def three(desk):
    return lambda *how: submit(desk, *how)


def said_by(desk, run, host, part=None):
    """What each process of a role wrote as its first line on a host, of the main role without a name."""
    folder = desk.there(host, run) if part is None else desk.there(host, run) / "roles" / part
    logs = sorted((folder / "logs").glob("*/rank-*.log"))
    return [json.loads(log.read_text().splitlines()[0]) for log in logs if log.read_text()]


def ranks_of(desk, run, host, part=None):
    """The processes of a role's ranks on a host, of the main role without a name."""
    place = f"/runs/{run}/" + (f"roles/{part}/logs/" if part else "logs/")
    return [pid for pid in desk.hosts.nodes[host].started() if place in log_of(pid) and "/rank-" in log_of(pid)]


def programs_of(desk, run, host, part, word):
    """The agents, or the coordinator, of a role on a host: parents before those that they forked."""
    place = f"/runs/{run}/roles/{part}\0".encode()
    found = [(pid, command(pid)) for pid in desk.own("launcher.node", host)]
    return [pid for pid, line in found if place in line and line.rstrip(b"\0").endswith(word)]


def finish(desk, run, host=0):
    """The main role has done enough."""
    (desk.there(host, run) / "code" / "enough").touch()
    return desk.wait(run)


@pytest.mark.daily
def test_roles_are_on_their_hosts_and_end_with_the_main_one(desk, three):
    run = three()
    names = [node.name for node in desk.hosts.nodes]
    learner = said_by(desk, run, 0)
    assert [(one["host"], one["RANK"], one["WORLD_SIZE"]) for one in learner] == [
        (names[0], "0", "2"),
        (names[0], "1", "2"),
    ]
    addresses = learner[0]["LAUNCH_ADDR_ACTORS"].split(",")
    assert [one.partition(":")[0] for one in addresses] == [node.address for node in desk.hosts.nodes[1:3]]
    (first,), (second,) = said_by(desk, run, 1, "actors-0"), said_by(desk, run, 2, "actors-1")
    (reward,) = said_by(desk, run, 1, "reward")
    assert [(one["host"], one["LAUNCH_ROLE_RANK"]) for one in (first, second)] == [(names[1], "0"), (names[2], "1")]
    assert reward["host"] == names[1]
    assert [one.partition(":")[2] for one in addresses] == [first["LAUNCH_PORT"], second["LAUNCH_PORT"]]
    status = desk.status(run)
    assert {name: one["state"] for name, one in status["roles"].items()} == dict.fromkeys(
        ("actors-0", "actors-1", "reward"), "running"
    )
    assert '"LAUNCH_ROLE": "actors"' in desk.launch("logs", run, "--role", "actors").stdout
    seen = desk.launch("exec", run, "--role", "actors", "--rank", "1", "--", "sh", "-c", "hostname; echo $LAUNCH_ROLE")
    assert seen.stdout.split() == [names[2], "actors"]
    found = json.loads(desk.launch("stacks", run, "--role", "reward", "--json").stdout)
    assert [(one["rank"], one["problem"]) for one in found] == [(0, "")]
    save(desk.there(2, run, "roles/actors-1/checkpoints"), 7, world_size=1)
    brought = desk.launch("fetch", run, "--role", "actors-1").stdout
    assert "checkpoint of step 7, 1 files" in brought, brought
    assert (desk.run_dir(run) / "roles/actors-1/checkpoints/step-00000007/MANIFEST.json").exists()
    status = finish(desk, run)
    assert (status["state"], status["world_size"]) == ("succeeded", 2)
    assert {one["state"] for one in status["roles"].values()} == {"cancelled"}


@pytest.mark.daily
def test_an_actor_its_agent_and_its_coordinator_come_back_while_the_learner_goes_on(desk, three):
    run = three()
    (before,) = said_by(desk, run, 2, "actors-1")
    strike(ranks_of(desk, run, 2, "actors-1")[0])
    again = desk.until("actor 1 again", lambda: (found := said_by(desk, run, 2, "actors-1"))[1:] and found)[1]
    assert (again["host"], again["LAUNCH_PORT"]) == (before["host"], before["LAUNCH_PORT"])
    strike(programs_of(desk, run, 1, "actors-0", b"\x000")[0])
    desk.until("actor 0 again", lambda: said_by(desk, run, 1, "actors-0")[1:])
    strike(programs_of(desk, run, 0, "actors-0", b"coordinator")[0])
    desk.until("actor 0 again", lambda: said_by(desk, run, 1, "actors-0")[2:])
    desk.until_step_there(0, run, desk.state_there(0, run)["step"] + 3)
    roles = desk.status(run)["roles"]
    assert [roles[name]["restarts"]["total"] for name in ("actors-0", "actors-1", "reward")] == [2, 1, 0]
    for name in ("actors-0", "actors-1"):
        history = desk.there(0, run, f"roles/{name}/events.jsonl").read_text()
        assert '"kind":"failure"' in history and "history_behind" not in history, "no restart begins before its copy"
    status = finish(desk, run)
    assert (status["state"], status["restarts"]["total"], status["generation"]) == ("succeeded", 0, 1)


def test_a_learner_that_is_killed_starts_again_and_the_others_stay(desk, three):
    run = three("role")
    actors = ranks_of(desk, run, 1, "actors") + ranks_of(desk, run, 2, "actors")
    strike(ranks_of(desk, run, 0)[0])
    desk.until("the learner again", lambda: desk.state_there(0, run)["generation"] == 2)
    desk.until_step_there(0, run, 3)
    assert ranks_of(desk, run, 1, "actors") + ranks_of(desk, run, 2, "actors") == actors
    assert finish(desk, run)["restarts"]["total"] == 1


def test_actors_that_follow_the_learner_start_again_with_it_at_their_addresses(desk, three):
    run = three("role, follows: learner")
    before = [said_by(desk, run, host, "actors")[0] for host in (1, 2)]
    strike(ranks_of(desk, run, 0)[0])
    desk.until("both actors again", lambda: all(said_by(desk, run, host, "actors")[1:] for host in (1, 2)))
    again = [said_by(desk, run, host, "actors")[1] for host in (1, 2)]
    assert [one["LAUNCH_PORT"] for one in again] == [one["LAUNCH_PORT"] for one in before]
    assert finish(desk, run)["state"] == "succeeded"


def test_with_one_actor_all_roles_start_again(desk, three):
    run = three("all")
    strike(ranks_of(desk, run, 1, "actors")[0])
    desk.until_step_there(0, run, 3, attempt=2)
    desk.until("the actors again", lambda: all(said_by(desk, run, host, "actors")[1:] for host in (1, 2)))
    status = finish(desk, run)
    assert (status["state"], status["attempt"], status["restarts"]["total"]) == ("succeeded", 2, 0), status


@pytest.mark.daily
def test_a_cancel_leaves_nothing_of_any_role(desk, three):
    run = three()
    desk.launch("cancel", run)
    assert desk.status(run)["state"] == "cancelled"
    assert not desk.left()


def test_on_one_disk_an_agent_and_the_leader_are_survived_too(pool_of, tmp_path):
    desk = pool_of(hosts=4, shared=True)
    run = submit(desk, "role", ", spares: 1")
    strike(programs_of(desk, run, 2, "actors", b"\x001")[0])
    desk.until("the actors again", lambda: len(said_by(desk, run, 0, "actors")) == 4)
    desk.hosts.nodes[0].power_off()
    desk.until_step_there(1, run, 3, attempt=2)
    assert finish(desk, run, 1)["state"] == "succeeded"


def test_a_resume_starts_all_roles_with_whole_budgets_and_may_move_them_to_other_hosts(desk, three):
    run = three("role")
    strike(ranks_of(desk, run, 1, "actors")[0])
    desk.until("the actors again", lambda: all(said_by(desk, run, host, "actors")[1:] for host in (1, 2)))
    desk.launch("cancel", run)
    desk.hosts.nodes[2].power_off()
    desk.launch("resume", run, "--without", desk.hosts.nodes[2].name)
    desk.until_step_there(0, run, 3, attempt=2)
    desk.until("the actors elsewhere", lambda: said_by(desk, run, 3, "actors"))
    history = desk.there(0, run, "roles/actors/events.jsonl").read_text().splitlines()
    assert [json.loads(line)["attempt"] for line in history if '"kind":"resumed"' in line] == [2]
    assert finish(desk, run)["state"] == "succeeded"


def test_a_host_that_comes_back_has_its_actor_again_while_the_others_go_on(desk, three):
    run = three()
    desk.hosts.nodes[2].power_off()
    desk.until("the loss", lambda: desk.status(run)["roles"]["actors-1"]["restarts"]["total"])
    desk.hosts.nodes[2].power_on()
    desk.until("actor 1 again", lambda: desk.status(run) and said_by(desk, run, 2, "actors-1")[1:])
    assert len(said_by(desk, run, 1, "actors-0")) == 1
    status = finish(desk, run)
    assert (status["state"], status["attempt"], status["generation"]) == ("succeeded", 1, 1)


def test_a_leader_that_is_cut_off_has_ended_its_roles_before_others_start_them(desk, three):
    run = three("role", ", spares: 1", "--set", "roles.reward.colocate=learner")
    desk.hosts.nodes[0].cut()
    leader = desk.until("the others", lambda: next((one for one in (1, 2, 3) if starts(desk, run, one)), None))
    assert not [*ranks_of(desk, run, 0), *ranks_of(desk, run, 0, "reward")]
    desk.hosts.nodes[0].mend()
    desk.until("the learner again", lambda: is_at_work(desk, run, leader))
    assert finish(desk, run, leader)["state"] == "succeeded"


def starts(desk, run, host):
    """Whether a role of the second attempt has been started by its leader there."""
    events = desk.there(host, run, "events.jsonl").read_text()
    return '"attempt":2,"kind":"role"' in events


def test_without_a_spare_host_a_lost_leader_interrupts_the_run_and_says_what_to_do(desk, three):
    run = three("role", "", "--set", "recovery.wait=5s")
    desk.hosts.nodes[0].power_off()
    end = desk.until("the end", lambda: desk.record_there(1, run, "attempts/0001/exit.json"))
    assert (end["state"], end["cause"]) == ("interrupted", "node_lost")
    assert "2 of its 3 hosts answer, too few to continue" in end["message"], end["message"]


@pytest.mark.parametrize("restart", ["alone", "role"])
def test_whatever_is_killed_of_whichever_role_the_run_ends_well(desk, three, draw, restart):
    run, struck = three(restart), []
    for _ in range(20 if NIGHTLY else 5):
        pid = draw.choice([pid for host in range(3) for pid in of_agents(desk, run, host)])
        struck.append(f"{command(pid)[-120:]!r} of {log_of(pid)}")
        now = max((desk.state_there(host, run) for host in range(3)), key=place_of)
        strike(pid)
        desk.until(
            f"steps after {struck[-1]}",
            lambda now=now: any(is_further(desk.state_there(host, run), now) for host in range(3)),
        )
    actors = [(1, "actors-0"), (2, "actors-1")] if restart == "alone" else [(1, "actors"), (2, "actors")]
    at_work = [*actors, (1, "reward")]
    desk.until("all roles at work", lambda: all(ranks_of(desk, run, host, part) for host, part in at_work))
    assert finish(desk, run)["state"] == "succeeded", struck


def of_agents(desk, run, host):
    """All on a host that agents, or coordinators, have started, and they; no supervisor."""
    return [pid for pid in desk.hosts.nodes[host].started() if f"/runs/{run}/" in log_of(pid) and is_an_agents(pid)]


def is_an_agents(pid):
    return b"launcher.supervisor" not in command(pid)


def test_the_shipped_learner_learns_on_a_pool_though_an_actor_is_killed(desk):
    for name in ("jobs", "templates"):
        shutil.copytree(shipped("jobs").parent / name, desk.project / name)
    pool = desk.project / "pools.yaml"
    pool.write_text(desk.hosts.clusters_yaml(python=sys.executable))
    pool.chmod(0o600)
    desk.env["LAUNCH_CLUSTERS"] = str(pool)
    run = desk.submit("jobs/actor_learner.yaml", "--on", "pool")
    desk.until_step_there(0, run, 10)
    strike(ranks_of(desk, run, 1, "actors-2")[0])
    status = desk.wait(run)
    assert (status["state"], status["step"], status["restarts"]["total"]) == ("succeeded", 100, 0)
    assert {name: one["restarts"]["total"] for name, one in status["roles"].items()} == {
        f"actors-{number}": int(number == 2) for number in range(4)
    }
    [measured] = json.loads(desk.launch("metrics", run, "--json").stdout)
    rewards = [row["reward"] for row in measured["rows"] if "reward" in row]
    assert rewards[-1] > 2 * rewards[0], rewards


def test_a_run_that_moves_counts_the_attempts_of_its_roles_on(desk, three):
    run = three()
    for number, place in ((2, "local"), (3, "pool")):
        desk.launch("cancel", run)
        desk.launch("resume", run, "--on", place)
        desk.until("the learner again", lambda: (desk.status(run)["step"] or 0) >= 3)
        desk.launch("logs", run, "--role", "actors")
        desk.until(
            "attempt", lambda n=number: [one["attempt"] for one in desk.status(run)["roles"].values()] == [n] * 3
        )
    finish(desk, run)
    for name in ("actors-0", "actors-1", "reward"):
        desk.launch("logs", run, "--role", name)
        logs = sorted((desk.run_dir(run) / "roles" / name / "logs").glob("*/rank-*.log"))
        assert [(log.parent.name, log.read_text().count("LAUNCH_PORT")) for log in logs] == [
            (f"a{number:04d}.g0001", 1) for number in (1, 2, 3)
        ]


@pytest.mark.daily
def test_the_dry_run_shows_the_hosts_of_each_role_and_what_no_host_sees_is_refused(desk):
    desk.script("learner.py", LEARNER)
    desk.script("server.py", SERVER)
    spec = desk.spec(SPEC % ("", "role"))
    shown = desk.launch("submit", spec, "--on", "pool", "--dry-run").stdout
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert any(row.endswith("server.py 2 nodes (1-2), 2 ranks GPUs none") for row in rows), rows
    assert any(row.endswith("server.py 1 node (1), 1 rank GPUs none") for row in rows), rows
    words = ("--set", "roles.reward.ready.log=up", "--set", "roles.reward.ready.path=null")
    said = desk.launch("submit", spec, "--on", "pool", *words, check=2).stderr
    assert "roles.reward.ready: is on the disk of its host, which others do not see" in said, said
    said = desk.launch("submit", spec, "--on", "pool", "--set", "roles.actors.resources.nodes=4", check=5).stderr
    assert "4 of at least 5 hosts can be used; nothing was started" in said, said


def test_a_leader_that_is_lost_brings_all_roles_back_on_the_hosts_that_are_left(desk, three):
    run = three("role", ", spares: 1")
    strike(ranks_of(desk, run, 1, "actors")[0])
    desk.until("the actors again", lambda: all(said_by(desk, run, host, "actors")[1:] for host in (1, 2)))
    desk.hosts.nodes[0].power_off()
    desk.until("the learner again", lambda: any(is_at_work(desk, run, host) for host in (1, 2, 3)))
    leader = next(host for host in (1, 2, 3) if is_at_work(desk, run, host))
    status = desk.status(run)
    assert status["roles"]["actors"]["restarts"]["total"] == 1  # what it had spent it has spent
    assert finish(desk, run, leader)["state"] == "succeeded"


def test_when_a_host_of_the_actors_is_lost_all_roles_start_again_with_the_spare_one(desk, three):
    run = three("role", ", spares: 1")
    desk.hosts.nodes[2].power_off()
    desk.until_step_there(0, run, 3, attempt=2)
    desk.until("the actors elsewhere", lambda: said_by(desk, run, 3, "actors"))
    assert finish(desk, run)["state"] == "succeeded"


def is_at_work(desk, run, host, attempt=2):
    state = desk.state_there(host, run)
    return state.get("attempt", 0) >= attempt and state["state"] == "running" and (state["step"] or 0) >= 3
