"""A run on plain hosts: the same words, files, logs and exit codes as anywhere; nobody has to stay connected."""

import json

import pytest
from process_names import listening, names_of

pytestmark = pytest.mark.nightly


@pytest.mark.daily
def test_a_run_over_two_hosts_ends_as_it_does_here(desk):
    run = desk.submit(desk.job(), "--on", "pool")
    status = desk.wait(run)
    assert (status["state"], status["cluster"], status["world_size"]) == ("succeeded", "pool", 4)
    assert [node["host"] for node in status["nodes"]] == ["node0", "node1"]
    assert status["fingerprint"] == desk.fingerprint_here(60)


@pytest.mark.daily
def test_the_log_of_all_hosts_is_one(desk):
    run = desk.submit(desk.job(20), "--on", "pool")
    followed = desk.launch("logs", run, "-f").stdout
    lines = [json.loads(line) for line in desk.launch("logs", run, "--json").stdout.splitlines()]
    assert {(line["node"], line["rank"]) for line in lines} == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert [line["text"] for line in lines if line["rank"] == 3].count("step 20") == 1
    assert len(followed.splitlines()) == len(lines)


@pytest.mark.daily
def test_each_host_has_a_supervisor_and_an_agent_with_a_port_each_and_one_for_copies(desk):
    run = desk.submit(desk.job(hold=2), "--on", "pool")
    desk.until_step_there(0, run, 2)
    found = names_of(desk.left())
    assert (found["launch-super"], found["launch-agent"], found["launch-watchdog"], found["rank"]) == (2, 2, 2, 4)
    assert listening(desk.left()) == {"launch-super": 2, "launch-agent": 3}
    desk.let_go()
    assert desk.wait(run)["state"] == "succeeded"


def test_what_ranks_write_beside_their_code_comes_home_by_host(desk):
    desk.script("writes.py", "import os\nopen(f'rank-{os.environ[\"RANK\"]}.txt', 'w').write('x' * 100)\n")
    resources = "resources: {nodes: 2, ranks_per_node: 1}\n"
    run = desk.submit(desk.spec(f"name: writes\nrun: {{script: writes.py}}\n{resources}"), "--on", "pool")
    desk.wait(run)
    for _ in range(2):
        said = desk.launch("fetch", run, "--outputs").stdout
        assert f"outputs, 1 file: {desk.run_dir(run)}/fetched-outputs/node0" in said
        folder = desk.run_dir(run) / "fetched-outputs"
        files = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        assert files == {"node0/rank-0.txt": 100, "node1/rank-1.txt": 100}


def test_nothing_of_ours_and_no_code_is_sent_twice(desk):
    first = desk.launch("submit", desk.job(5), "--on", "pool")
    assert "node0: code, " in first.stderr
    desk.wait(first.stdout.strip())
    desk.until("free hosts", lambda: not desk.left())  # else others are chosen

    def kept():
        homes = [desk.hosts.home(index) / "launch" for index in (0, 1)]
        return [sorted(path.name for path in (home / kind).iterdir()) for home in homes for kind in ("lib", "code")]

    before = kept()
    again = desk.launch("submit", desk.job(5), "--on", "pool").stderr
    assert "code," not in again and "node0: ready" in again
    assert kept() == before


@pytest.mark.daily
def test_resume_goes_on_from_the_newest_checkpoint(desk):
    run = desk.submit(desk.job(100, hold=99), "--on", "pool")
    desk.until_step_there(0, run, 30)
    desk.launch("cancel", run)
    desk.let_go()
    desk.launch("resume", run)
    status = desk.wait(run)
    history = (desk.run_dir(run) / "events.jsonl").read_bytes()
    assert history.count(b'"resumed"') == 1 and history == desk.there(0, run, "events.jsonl").read_bytes()
    assert (status["attempt"], status["fingerprint"]) == (2, desk.fingerprint_here(100))
    desk.launch("logs", run)
    starts = [line for line in desk.rank_logs(run).splitlines() if "starts at step" in line]
    assert len(starts) == 8 and sum("starts at step 0" in line for line in starts) == 4


def test_a_pool_in_the_spec(desk):
    more = "ssh:\n  hosts: [node2, node3]\n"
    status = desk.wait(desk.submit(desk.job(20, more=more), "--on", "ssh"))
    assert [node["host"] for node in status["nodes"]] == ["node2", "node3"]


def test_a_pool_without_hosts_says_what_to_write(desk):
    said = desk.launch("submit", desk.job(20), "--on", "ssh", check=2).stderr
    assert "names no hosts" in said and "hosts: [...]" in said
