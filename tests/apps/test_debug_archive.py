"""`launch debug-archive`: what the archive holds, what it must not, and what is listed before it is written."""

import json
import socket
import tarfile

import msgspec
import pytest
from run_folder import RunFolder, dead_process, plan_of

from launcher import api
from launcher.apps.debug_archive import collect
from launcher.errors import Refused
from launcher.health.findings import Finding, Level
from launcher.health.last import keep
from launcher.ids import parse_run_id
from launcher.run.records import Failure, NodeState
from launcher.states import Cause, State
from launcher.supervisor.notify.record import Notifying, Recipient

SECRETS = {
    "declared": 'hunter2/"quoted"',
    "of-two-lines": "first half\nsecond-half",
    "env": "value-of-API_KEY",
    "option": "value-of---token",
    "webhook": "services/T0000/B0000/webhook-token",
    "environment": "secret-of-the-environment",
    "by its look": "hf_abcdefghijklmnopqrst",
    "in an address": "carol:s3cr3t-word",
}
HOSTS = ("athena-gpu07", "athena-gpu08.cluster.example.org", "10.31.7.8", "fe80::a1b2:c3d4")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A failed run whose every file that somebody else wrote holds each secret and each host."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SOME_SECRET", SECRETS["environment"])
    run = RunFolder(tmp_path / "job-abcd")
    planted = "\n".join(
        [*list(SECRETS.values())[:-1], f"https://{SECRETS['in an address']}@x/", *HOSTS, "dave@example.org"]
    )
    said = f"{planted} {json.dumps(planted)}"
    plan = plan_of(run.path)
    spec = msgspec.structs.replace(plan.spec, env={"API_KEY": SECRETS["env"]})
    entry = msgspec.structs.replace(plan.entry, args=("--token", SECRETS["option"], "--text", said))
    nodes = (NodeState(0, HOSTS[2], "left", host=HOSTS[0]), NodeState(1, HOSTS[3], "left", host=HOSTS[1]))
    failure = Failure(Cause.USER_ERROR, said, 0, 1, 1, tail=(said,), log="logs/a0001.g0001/rank-00000.log")
    run.failed(failure, nodes=nodes)
    run.write(run.run.plan, msgspec.structs.replace(plan, spec=spec, entry=entry, secrets=("A", "B")))
    run.write(run.run.secrets, {"A": SECRETS["declared"], "B": SECRETS["of-two-lines"]})
    address = f"https://hooks.slack.com/{SECRETS['webhook']}"
    run.write(run.run.notify, Notifying((Recipient("slack-1", "slack", address),), ("failed",)))
    run.event(said, "failure", rank=0, cause=Cause.USER_ERROR)
    attempt = run.run.attempt(1)
    for path in (attempt.agent_log(0), attempt.zygote_log(0), attempt.supervisor_log, attempt.messenger_log,
                 attempt.error_file(0, 0), attempt.hang(1), run.path / "metrics" / "environment.n000.a0001.jsonl",
                 run.path / "spec.yaml", run.path / "checkpoints" / "step-00000001" / "MANIFEST.json"):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{said}\n")
    keep("local", [Finding(Level.WARNING, "disk", said)], trial=False)
    return run.log(0, f"{said}\n").log(1, f"{'x' * 100_000}{planted}\nlast line\n")


def of(folder):
    return api.Run(parse_run_id(folder.path.name), folder.path)


def members(archive):
    return {one.name: one.data.decode() for one in archive.members}


def test_it_holds_what_a_report_needs_and_nothing_else(folder):
    found = members(collect(of(folder)))
    assert sorted(found) == sorted([
        "versions.json", "status.json", "doctor-this-machine.json", "plan.json", "state.json", "events.jsonl",
        "metrics/environment.n000.a0001.jsonl", "attempts/0001/token.json", "attempts/0001/handle.json",
        "attempts/0001/coordinator.json", "attempts/0001/exit.json", "attempts/0001/keeper.log",
        "attempts/0001/messenger.log", "attempts/0001/started", "attempts/0001/node-00/agent.json",
        "attempts/0001/node-00/agent.log", "attempts/0001/node-00/zygote.log", "attempts/0001/node-00/error-000.json",
        "attempts/0001/hang-001/report.json", "logs/a0001.g0001/rank-00000.log", "logs/a0001.g0001/rank-00001.log",
        "left-out.txt",
    ])  # fmt: skip
    assert json.loads(found["status.json"])["cause"] == "user_error"
    assert json.loads(found["versions.json"])["packages"]["msgspec"]


@pytest.mark.parametrize("what", SECRETS)
def test_no_member_holds_a_secret(folder, what):
    found = members(collect(of(folder)))
    lines = SECRETS[what].splitlines()
    forms = {*lines, *(json.dumps(line)[1:-1] for line in lines)}
    assert [(name, form) for name, text in found.items() for form in forms if form in text] == []
    assert "(secret)" in found["logs/a0001.g0001/rank-00000.log"]


def test_no_member_holds_a_host_or_a_person(folder):
    found = members(collect(of(folder)))
    names = (*HOSTS, HOSTS[1].partition(".")[0], socket.gethostname(), "dave@")
    assert [(name, host) for name, text in found.items() for host in names if host in text] == []
    states = json.loads(found["state.json"])["nodes"]
    assert states[0]["host"] != states[1]["host"]
    assert all(node["host"].startswith("host-") for node in states)
    assert states[0]["host"] in found["attempts/0001/node-00/agent.log"]


def test_a_log_is_cut_at_a_line_so_that_no_half_of_a_secret_stays(folder):
    folder.log(2, f"{SECRETS['declared'] * 10_000}\nlast line\n")
    cut = {one.name: one for one in collect(of(folder)).members if one.cut}
    assert cut["logs/a0001.g0001/rank-00002.log"].data == b"last line\n"


def test_the_whole_is_bounded_and_says_what_it_leaves_out(folder):
    for rank in range(70):
        folder.log(rank, "y" * 79 + "\n" + ("z" * 99 + "\n") * 900)
    archive = collect(of(folder))
    assert sum(name.startswith("logs/") for name in members(archive)) == 64
    assert sum(len(one.data) for one in archive.members) < 20_000_000
    assert "logs/a0001.g0001/rank-00069.log: there are too many files" in archive.left_out
    assert "rank-00069.log" in members(archive)["left-out.txt"]


def test_a_link_that_a_rank_has_made_is_not_followed(folder, tmp_path):
    private = tmp_path / "private"
    private.write_text("of the user alone\n")
    (folder.path / "logs" / "a0001.g0001" / "rank-00009.log").symlink_to(private)
    assert not any("of the user alone" in text for text in members(collect(of(folder))).values())


@pytest.mark.parametrize("log", ["{private}", "../private.log"])
def test_a_log_outside_of_the_run_is_not_read_whatever_a_record_names(folder, tmp_path, log):
    private = tmp_path / "private.log"
    private.write_text("of the user alone\n")
    failure = Failure(Cause.USER_ERROR, "it ended", 1, 1, log=log.format(private=private))
    folder.state(State.FAILED, cause=Cause.USER_ERROR, failure=failure)
    found = members(collect(of(folder)))
    assert "logs/a0001.g0001/rank-00000.log" in found
    assert not any("of the user alone" in text for text in found.values())


def test_it_is_refused_where_a_secret_is_not_known_here(folder):
    folder.run.secrets.unlink()
    with pytest.raises(Refused, match="the value of A, B is not on this machine"):
        collect(of(folder))


def test_it_is_listed_before_it_is_written(tmp_path, monkeypatch, capsys):
    from launcher.cli.main import main
    from launcher.run import registry

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    run = RunFolder(tmp_path / "runs" / "job-abcd").plan().attempt(supervisor=dead_process())
    run.state(State.SUCCEEDED).end(State.SUCCEEDED).log(0, "one\n")
    run.write(run.run.secrets, {"TOKEN": "of-the-plan"})
    registry.register("job-abcd", run.path, fsync=False)
    assert main(["debug-archive", "job-abcd", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "logs/a0001.g0001/rank-00000.log" in listed
    assert not list(tmp_path.glob("*.tar.gz"))
    assert main(["debug-archive", "job-abcd"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "job-abcd-debug.tar.gz\n"
    assert "logs/a0001.g0001/rank-00000.log" in shown.err
    file = tmp_path / "job-abcd-debug.tar.gz"
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        assert {line.split()[0] for line in listed.splitlines()} == {
            name.removeprefix("debug-archive/") for name in archive.getnames()
        }
    assert main(["debug-archive", "job-abcd", "--list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], told["left_out"]) == (None, [])
    assert {one["name"] for one in told["members"]} == {line.split()[0] for line in listed.splitlines()}
    assert main(["debug-archive", "job-abcd", "-o", "nowhere/x.tar.gz"]) == 4
    assert "cannot write nowhere/x.tar.gz" in capsys.readouterr().err
