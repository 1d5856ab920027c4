"""Command lines for Slurm's clients, and what several versions answer, as data."""

import math
import random
import time
from pathlib import Path

import pytest

from launcher.errors import Unreachable
from launcher.places.batch.answers import read_submitted
from launcher.places.batch.batch import Fate, Phase
from launcher.places.slurm.queries import jobs, nodes, site
from launcher.places.slurm.queries.jobs import (
    cancel,
    fate_of,
    is_expedited,
    read_jobs,
    read_sacct,
    read_test_only,
    requeue,
    sacct_jobs,
    squeue_jobs,
    update,
)
from launcher.places.slurm.queries.nodes import (
    gpu_count,
    hostlist,
    is_in_hostlist,
    partition_nodes,
    partitions,
    read_hostnames,
    read_node_state,
    read_nodes,
    read_partition_nodes,
    read_partitions,
    show_hostnames,
    show_nodes,
)
from launcher.places.slurm.queries.site import read_config, read_version, show_config
from launcher.places.slurm.queries.values import FIELD, ROW, read_duration, read_time
from launcher.places.slurm.queue import SlurmSystem
from tests.sizes import SEED

RECORDED = Path(__file__).parent / "recorded"
NOT_IDS = ["", "x", "-1", "--me", "1 2", "1,2", "1\n", "1_", "1_[0-3]", "²", "7" * 11]


def recorded(name):
    return (RECORDED / name).read_bytes().decode()


def jobs_of(name):
    return {job.id: job for job in read_jobs(recorded(name))}


@pytest.fixture
def in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


# Command lines


def test_all_jobs_of_the_caller_are_one_question():
    argv = squeue_jobs()
    assert argv[0] == "squeue"
    assert "--me" in argv
    assert not {"--noheader", "--all", "--array-unique", "--states=all"} - set(argv)
    assert not any(word.startswith("--jobs") for word in argv)


def test_some_jobs_or_those_of_a_name():
    assert "--jobs=7,5_3" in squeue_jobs(job_ids=["7", "5_3"])
    assert "--me" not in squeue_jobs(job_ids=["7"])
    assert "--name=train-7k3f" in squeue_jobs(name="train-7k3f")
    assert "--me" in squeue_jobs(name="train-7k3f")


def test_no_format_asks_for_a_name_that_somebody_chose_freely_but_as_the_last_field():
    (wanted,) = [word for word in squeue_jobs() if word.startswith("--Format=")]
    assert wanted.endswith(f",Comment:{ROW}")
    assert "Name:" not in wanted.replace("HostName", "")


def test_accounts_are_asked_since_a_moment():
    argv = sacct_jobs(["7", "5_3"], 1_795_000_000.9)
    assert argv[0] == "sacct"
    assert {"--starttime=uts1795000000", "--jobs=7,5_3", "--allocations", "--parsable2"} <= set(argv)
    assert "--starttime=uts1000000000" in sacct_jobs(["7"])


def test_cancel_and_signals():
    assert cancel("5_3") == ["scancel", "5_3"]
    assert cancel("5", batch=True) == ["scancel", "--batch", "5"]
    assert cancel("5", signal="USR1") == ["scancel", "--signal=USR1", "--state=RUNNING", "5"]
    assert cancel("5", "TERM", batch=True) == ["scancel", "--signal=TERM", "--state=RUNNING", "--batch", "5"]


def test_changes_of_a_job():
    assert requeue("5_3") == ["scontrol", "requeue", "5_3"]
    assert update("5", StartTime="now", ExcNodeList="n[1-2]") == [
        "scontrol", "update", "JobId=5", "StartTime=now", "ExcNodeList=n[1-2]",
    ]  # fmt: skip


def test_questions_about_the_site():
    assert show_hostnames("n[0-3]") == ["scontrol", "show", "hostnames", "n[0-3]"]
    assert show_nodes(["n0", "n1"]) == ["scontrol", "--oneliner", "show", "node", "n0,n1"]
    assert show_nodes() == ["scontrol", "--oneliner", "show", "node"]
    assert show_config() == ["scontrol", "show", "config"]
    assert "--partition=main" in partition_nodes("main")
    assert "--partition=main" in partitions("main")
    assert not any(word.startswith("--partition") for word in partition_nodes() + partitions())


@pytest.mark.parametrize("text", NOT_IDS)
@pytest.mark.parametrize(
    "build",
    [requeue, cancel, update, lambda text: squeue_jobs(job_ids=[text]), lambda text: sacct_jobs(["1", text])],
    ids=["requeue", "cancel", "update", "squeue", "sacct"],
)
def test_what_is_no_id_gets_into_no_command_line(build, text):
    with pytest.raises(ValueError, match="expected the id of a Slurm job"):
        build(text)


@pytest.mark.parametrize("text", ["", "-a", "--all"])
def test_what_could_be_an_option_is_no_list_of_hosts(text):
    for build in (show_hostnames, lambda hosts: show_nodes([hosts])):
        with pytest.raises(ValueError, match="expected a list of hosts"):
            build(text)


# squeue


def test_squeue_of_a_real_cluster():
    found = jobs_of("squeue-22.05.txt")
    assert len(found) == 21
    run = found["35"]
    assert (run.state.word, run.hosts, run.batch_host) == ("RUNNING", "n[0-1]", "n0")
    assert (run.starts_at, run.ends_at, run.restarts) == (1_795_266_968.0, 1_795_267_568.0, 0)
    assert run.comment == "launch:resnet-7k3f:0001:9c1e44d0"
    assert (found["36"].restarts, found["36"].raw_id, found["36"].array) == (1, "36", None)
    assert (found["41"].reason, found["41"].comment, found["41"].starts_at) == ("JobHeldUser", "", None)
    assert found["45"].starts_at == 1_795_270_570.0
    assert found["50"].reason == "ReqNodeNotAvail, UnavailableNodes:n1"
    assert (found["50"].hosts, found["50"].batch_host) == ("", "")
    assert found["53"].state.phase is Phase.ENDING
    ended = {job.id: job.state.word for job in found.values() if job.state.phase is Phase.ENDED}
    assert ended == {"34": "TIMEOUT", "37": "FAILED", "38": "COMPLETED", "39": "CANCELLED", "49": "TIMEOUT"}


def test_a_heterogeneous_job_is_one_job_with_the_hosts_of_all_its_components():
    """As Slurm 22.05 writes it."""
    row = "1+{n}\x1f{id}\x1fRUNNING\x1f0\x1f2026-11-29T15:38:49\x1fNONE\x1f{hosts}\x1fnode0\x1fNone\x1flaunch:abc\x1e\n"
    rows = [row.format(n=1, id=2, hosts="node[1-2]"), row.format(n=0, id=1, hosts="node0")]
    [job] = read_jobs("".join(rows))
    assert (job.id, job.raw_id, job.hosts, job.submit_tokens) == ("1", "1", "node0,node[1-2]", {"abc"})
    account = "1+{n}\x1f{id}\x1fCOMPLETED\x1f0:0\x1fUnknown\x1fUnknown\x1fUnknown\x1fnode{n}\n"
    [job] = read_sacct(0, account.format(n=0, id=1) + account.format(n=1, id=2))
    assert (job.id, job.hosts) == ("1", "node0,node1")


def test_elements_of_an_array_are_jobs_of_their_own():
    found = jobs_of("squeue-22.05.txt")
    elements = [found[f"43_{index}"] for index in range(4)]
    assert [job.array for job in elements] == [("43", index) for index in range(4)]
    assert [job.raw_id for job in elements] == ["51", "52", "43", "43"]
    assert {job.comment for job in elements} == {"launch:sweep-x1yz"}


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("[1-99:2]", range(1, 100, 2)),  # what `squeue --array` takes for 1 to 97
        ("[3,17,31-33%4]", [3, 17, 31, 32, 33]),
        ("[0-1,12-60:12]", [0, 1, 12, 24, 36, 48, 60]),
        ("[7%1]", [7]),
    ],
)
def test_elements_that_wait_share_a_row(text, indices):
    row = FIELD.join([f"5_{text}", "5", "PENDING", "0", "N/A", "N/A", "", "n/a", "Resources", "launch:sweep"])
    found = read_jobs(f"{row}{ROW}\n")
    assert [job.id for job in found] == [f"5_{index}" for index in indices]
    assert [job.array for job in found] == [("5", index) for index in indices]
    assert {(job.raw_id, job.state.phase, job.comment) for job in found} == {("5", Phase.QUEUED, "launch:sweep")}


@pytest.mark.parametrize("text", ["[1-3,5,...]", "[1-3,5,7", "[]", "[1,]", "[1-9:0]", "[a]"])
def test_elements_that_are_not_told_are_not_gone(text):
    row = FIELD.join([f"5_{text}", "5", "PENDING", "0", "N/A", "N/A", "", "n/a", "Resources", "launch:sweep"])
    with pytest.raises(Unreachable, match="damaged"):
        read_jobs(f"{row}{ROW}\n")


def test_a_new_line_and_the_separator_in_a_comment_split_no_row():
    assert jobs_of("squeue-22.05.txt")["40"].comment == f"two\nlines|{FIELD}%z "


@pytest.mark.parametrize(
    ("version", "phases"),
    [
        ("20.11", {"812": "running", "813": "queued", "814": "queued", "815": "queued"}),
        ("21.08", {"90100_7": "running", "90100_8": "queued", "90200": "running", "90201": "queued"}),
        ("23.02", {"4411": "queued", "4412": "running", "4414": "ended"}),
        ("23.11", {"70001": "queued", "70002": "ended", "70003": "ended"}),
        ("24.05", {"123456": "running", "123457": "queued", "123458": "queued"}),
        ("24.11", {"998": "running", "999": "queued"}),
    ],
)
def test_squeue_of_other_versions_with_what_sites_print_around(version, phases):
    assert {name: job.state.phase for name, job in jobs_of(f"squeue-{version}.txt").items()} == phases


@pytest.mark.usefixtures("in_berlin")
def test_a_date_in_words_is_local_time():
    assert jobs_of("squeue-21.08.txt")["90100_7"].starts_at == 1_646_118_000.0  # 2022-03-01T08:00:00 +01:00


def test_no_rows_are_no_jobs():
    assert read_jobs("") == read_jobs("\n") == read_jobs("Welcome to the cluster\n\n") == []


@pytest.mark.parametrize("kept", [10, 40, 200, 700, -2])
def test_an_answer_that_was_cut_is_none(kept):
    with pytest.raises(Unreachable, match="damaged"):
        read_jobs(recorded("squeue-22.05.txt")[:kept])


@pytest.mark.parametrize("old", ["812", FIELD + "gpu01", "813" + FIELD])
def test_a_damaged_row_is_no_row_that_is_not_there(old):
    text = recorded("squeue-20.11.txt")
    assert old in text
    with pytest.raises(Unreachable, match="damaged"):
        read_jobs(text.replace(old, "", 1))


def test_the_end_of_a_row_in_a_comment_hides_no_job():
    text = recorded("squeue-24.11.txt").replace("launch:gpt-1a2b:0001:c0ffee00", f"one{ROW}two\nthree")
    found = read_jobs(text)
    assert [job.id for job in found] == ["998", "999"]
    assert found[0].comment == "one"


# sacct


def test_sacct_of_a_real_cluster():
    found = {job.id: job for job in read_sacct(0, recorded("sacct-22.05.txt"))}
    assert (found["39"].state.word, found["39"].state.by, found["39"].exit_code) == ("CANCELLED", "0", 0)
    assert (found["37"].state.word, found["37"].exit_code, found["37"].signal) == ("FAILED", 3, 0)
    assert found["34"].ends_at == 1_795_267_050.0
    assert (found["41"].hosts, found["41"].starts_at, found["41"].ends_at) == ("", None, None)
    assert (found["43_1"].raw_id, found["43_1"].array) == ("52", ("43", 1))


def test_of_a_requeued_job_the_newest_start_counts():
    once = read_sacct(0, recorded("sacct-22.05.txt"))
    both = recorded("sacct-duplicates-22.05.txt")
    assert "REQUEUED" in both
    assert sorted(read_sacct(0, both), key=repr) == sorted(once, key=repr)
    backwards = "\n".join(reversed(both.splitlines()))
    assert {job.id: job for job in read_sacct(0, backwards)}["36"].state.word == "RUNNING"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("20.11", {"812": "CANCELLED", "813": "COMPLETED"}),
        ("21.08", {"90100_7": "PREEMPTED", "90200": "OUT_OF_MEMORY"}),
        ("24.11", {"998": "TIMEOUT", "1001": "CANCELLED", "1002": "BOOT_FAIL", "1003": "DEADLINE"}),
    ],
)
def test_sacct_of_other_versions(version, words):
    found = read_sacct(0, recorded(f"sacct-{version}.txt"))
    assert {job.id: job.state.word for job in found} == words


def test_a_cluster_without_accounts():
    disabled = recorded("sacct-disabled-22.05.txt")
    assert read_sacct(1, "", disabled) is None
    assert read_sacct(0, disabled) is None
    assert read_sacct(1, "", "sacct: error: what now") is None


def test_accounts_that_know_none_of_the_jobs():
    assert read_sacct(0, "") == []
    assert read_sacct(0, "Welcome\n\n") == []


# sbatch


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("123\n", "123"),
        ("123;alpine\n", "123"),
        ("  123 \r\n", "123"),
        (recorded("submitted.txt"), "12345"),
        ("your quota: 80 %\n17\nbye 12\n", "17"),
        ("17\n17\n", "17"),
        ("17\n18\n", None),
        ("", None),
        ("Submitted batch job 17\n", None),
        ("123;rm -rf /\n", None),
        ("-5\n", None),
        ("12345678901\n", None),
        ("٣\n", None),
    ],
)
def test_the_id_of_a_submitted_job(text, job_id):
    assert read_submitted(text) == job_id


def test_an_estimate():
    assert read_test_only(recorded("test-only-22.05.txt")) == (
        1_795_270_374.0,
        "1 processors on nodes n0 in partition main",
    )
    assert read_test_only(recorded("test-only-24.11.txt")) == (
        1_735_776_000.0,
        "224 processors on nodes dgx[1-2] in partition train",
    )


@pytest.mark.usefixtures("in_berlin")
def test_an_estimate_in_words():
    starts_at, where = read_test_only(recorded("test-only-20.11.txt"))
    assert starts_at == 1_606_820_400.0  # 2020-12-01T12:00:00 +01:00
    assert where == "4 processors on nodes gpu[01-02] in partition gpu"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (recorded("test-only-impossible-22.05.txt"), "Requested node configuration is not available"),
        (
            recorded("test-only-no-partition-22.05.txt"),
            "invalid partition specified: nope; Invalid partition name specified",
        ),
        (recorded("test-only-never-22.05.txt"), "no start is in sight"),
        ("sbatch: Job 5 to start at N/A using 1 processors on nodes n0 in partition p", "no start is in sight"),
        ("sbatch: fatal: Unable to open file x\n", "Unable to open file x"),
        ("", "sbatch gives no reason"),
    ],
)
def test_no_estimate_says_why(text, words):
    assert read_test_only(text) == (None, words)


# Nodes and partitions


def test_hostnames():
    assert read_hostnames("node00\nnode01\n") == ["node00", "node01"]
    assert read_hostnames("n-1.cluster.example\n\n n2 \n") == ["n-1.cluster.example", "n2"]
    assert read_hostnames("n]\n-x\nInvalid hostlist: n[0-\nn\x1b[0m\n") == []


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("gpu01", ["gpu01"], ["gpu1", "gpu011", "agpu01", ""]),
        ("gpu[01-03,7]", ["gpu01", "gpu03", "gpu7"], ["gpu1", "gpu04", "gpu07", "gpu[01-03,7]", "gpu"]),
        ("gpu[8-11]", ["gpu8", "gpu11"], ["gpu08", "gpu12"]),
        ("login1,gpu[01,03],x2", ["login1", "gpu03", "x2"], ["gpu02", "x"]),
        ("r[1-2]n[01-16]-ib", ["r1n01-ib", "r2n16-ib"], ["r3n01-ib", "r1n1-ib", "r1n01"]),
        ("a.b", ["a.b"], ["axb"]),
        ("gpu[01-", ["gpu[01-"], ["gpu01"]),  # damaged: Slurm says so to whoever submits it
        ("gpu[x-y]", [], ["gpux", "gpu1"]),
    ],
)
def test_whether_a_host_is_in_a_hostlist(text, inside, outside):
    assert [host for host in (*inside, *outside) if is_in_hostlist(host, text)] == inside


def test_nodes_of_a_real_cluster():
    nodes = read_nodes(recorded("show-node-22.05.txt"))
    assert list(nodes) == ["n0", "n1", "n2"]
    one, drained = nodes["n0"], nodes["n1"]
    assert (one.address, one.cpus, one.memory_mb, one.gres, one.gpus) == ("127.0.0.1", 8, 4000, "gpu:a100:2", 2)
    assert (one.state, one.reason, one.booted_at) == (("MIXED",), "", 1_795_240_511.0)
    assert one.takes_jobs
    assert drained.state == ("MIXED", "DRAIN")
    assert drained.reason == "bad disk, do not use; x=y State=IDLE"
    assert not drained.takes_jobs
    assert (drained.is_down, drained.is_drained, one.is_drained) == (False, True, False)


@pytest.mark.parametrize(
    ("version", "name", "address", "state", "gpus", "reason", "down", "takes"),
    [
        ("20.11", "gpu01", "gpu01", "ALLOCATED", 4, "", False, True),
        ("20.11", "gpu02", "gpu02", "DOWN NOT_RESPONDING DRAIN", 4, "Not responding", True, False),
        ("21.08", "a100-003", "10.3.0.3", "MIXED PLANNED", 6, "", False, True),
        ("23.02", "cn1", "cn1.cluster.example", "IDLE", 0, "", False, True),
        ("23.02", "cloud7", "cloud7", "IDLE CLOUD POWERED_DOWN", 1, "", False, True),
        ("23.11", "h100-01", "h100-01", "ALLOCATED DRAIN NOT_RESPONDING", 8, "XID 79", True, False),
        ("24.05", "node0001", "fd00:10::1", "IDLE DYNAMIC_NORM", 1, "", False, True),
        ("24.11", "dgx1", "10.1.0.1", "IDLE MAINTENANCE RESERVED", 8, "", False, False),
    ],
)
def test_nodes_of_other_versions(version, name, address, state, gpus, reason, down, takes):
    node = read_nodes(recorded(f"show-node-{version}.txt"))[name]
    assert (node.address, " ".join(node.state), node.gpus, node.reason) == (address, state, gpus, reason)
    assert (node.is_down, node.takes_jobs) == (down, takes)
    assert node.cpus > 0


def test_a_node_that_does_not_exist_hides_no_other():
    assert list(read_nodes(recorded("show-node-22.05.txt") + "Node nope not found\n")) == ["n0", "n1", "n2"]
    assert read_nodes("Node nope not found\n") == {}
    assert read_nodes("NodeName= State=IDLE\n") == {}


def test_a_reason_that_looks_like_fields_is_a_reason():
    line = (
        "NodeName=n1 NodeAddr=10.0.0.1 State=DOWN Reason=State=IDLE BootTime=5 [x y] NodeAddr=evil [root@1795267078]\n"
    )
    node = read_nodes(line)["n1"]
    assert (node.address, node.state, node.booted_at) == ("10.0.0.1", ("DOWN",), None)
    assert node.reason == "State=IDLE BootTime=5 [x y] NodeAddr=evil"


def test_nodes_of_partitions():
    nodes = read_partition_nodes(recorded("sinfo-nodes-22.05.txt"))
    assert [(node.name, node.partition) for node in nodes if node.default] == [("n0", "main"), ("n1", "main")]
    assert {node.partition for node in nodes} == {"main", "minute", "urgent", "shut"}
    assert {(node.cpus, node.memory_mb, node.gpus) for node in nodes} == {(8, 4000, 2)}
    assert {node.reason for node in nodes if "DRAINING" in node.state} == {"bad disk, do not use; x=y State=IDLE"}


@pytest.mark.parametrize(
    ("version", "free", "gpus"),
    [
        ("20.11", {"gpu01", "gpu03"}, {"gpu01": 4, "gpu02": 4, "gpu03": 4, "cpu01": 0}),
        ("24.11", {"dgx1", "dgx2", "dgx3"}, {f"dgx{number}": 8 for number in range(1, 7)}),
    ],
)
def test_nodes_of_partitions_of_other_versions(version, free, gpus):
    nodes = read_partition_nodes(recorded(f"sinfo-nodes-{version}.txt"))
    assert {node.name for node in nodes if node.takes_jobs} == free
    assert {node.name: node.gpus for node in nodes} == gpus
    assert min(node.memory_mb for node in nodes) >= 257_000


def test_partitions():
    found = {partition.name: partition for partition in read_partitions(recorded("sinfo-partitions-22.05.txt"))}
    assert [name for name, partition in found.items() if partition.default] == ["main"]
    assert (found["main"].max_time_s, found["main"].default_time_s) == (86_400.0, 600.0)
    assert (found["minute"].max_time_s, found["minute"].default_time_s, found["minute"].nodes) == (60.0, None, 3)
    assert found["urgent"].max_time_s == math.inf
    assert found["shut"].availability == "down"
    newer = {partition.name: partition for partition in read_partitions(recorded("sinfo-partitions-24.11.txt"))}
    assert (newer["train"].idle_nodes, newer["train"].nodes, newer["train"].default) == (2, 6, True)
    assert (newer["long"].availability, newer["debug"].max_time_s) == ("drain", 1800.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("idle", "IDLE"),
        ("down*", "DOWN NOT_RESPONDING"),
        ("DOWN*+DRAIN", "DOWN NOT_RESPONDING DRAIN"),
        ("idle~", "IDLE POWERED_DOWN"),
        ("mixed#", "MIXED POWERING_UP"),
        ("alloc%", "ALLOC POWERING_DOWN"),
        ("idle!", "IDLE POWER_DOWN"),
        ("mixed-", "MIXED PLANNED"),
        ("drained$", "DRAINED MAINT"),
        ("mixed@", "MIXED REBOOT_REQUESTED"),
        ("idle^*", "IDLE REBOOT_ISSUED NOT_RESPONDING"),
        ("idle+cloud+cloud", "IDLE CLOUD"),
        ("mixed+", "MIXED"),
        ("", ""),
    ],
)
def test_the_states_of_a_node_are_words(text, words):
    assert " ".join(read_node_state(text)) == words


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:a100", 1),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:4(S:0,2)", 4),
        ("gpu:2,mps:100", 2),
        ("mps:100,gpu:2", 2),
        ("gpu:a100:2,gpu:v100:1", 3),
        ("gpu:a100_3g.20gb:2(S:0),gpu:a100_1g.5gb:4(S:1)", 6),
        ("gpu:0", 0),
        ("shard:h200:32", 0),
        ("gpuish:4", 0),
        ("(null)", 0),
        ("", 0),
    ],
)
def test_gpus_in_gres(gres, gpus):
    assert gpu_count(gres) == gpus


# The site


def test_the_configuration_of_a_real_cluster():
    config = read_config(recorded("show-config-22.05.txt"))
    assert (config.version, config.cluster, config.requeue, config.max_array_size) == ("22.05.8", "lab", True, 1001)
    assert (config.slurmd_timeout_s, config.kill_wait_s, config.min_job_age_s) == (30.0, 5.0, 600.0)
    assert (config.preempt_mode, config.accounting) == ("REQUEUE", True)


@pytest.mark.parametrize("version", ["25.11", "26.05"])
def test_a_version_with_expedited_requeue(version):
    config = read_config(recorded(f"show-config-{version}.txt"))
    assert config.expedites
    assert config.version.startswith(version)
    accounts = {job.id: job for job in read_sacct(0, recorded(f"sacct-{version}.txt"))}
    for listed in (jobs_of(f"squeue-{version}.txt"), accounts):
        assert (listed["997"].state.word, listed["997"].state.phase) == ("EXPEDITING", Phase.QUEUED)
        assert listed["998"].state.phase is Phase.QUEUED
    shown = recorded(f"show-job-{version}.txt")
    assert is_expedited(shown)
    assert fate_of(shown, 1) is Fate.QUEUED_AGAIN


@pytest.mark.parametrize("version", ["20.11", "22.05", "24.11"])
def test_no_older_version_has_it(version):
    assert not read_config(recorded(f"show-config-{version}.txt")).expedites


@pytest.mark.parametrize(
    ("config", "client", "expected"),
    [
        ("show-config-25.11.txt", "slurm 25.11.4", True),
        ("show-config-26.05.txt", "slurm-wlm 26.05.1", True),
        ("show-config-25.11.txt", "slurm 25.05.3", False),
        ("show-config-25.11.txt", "", False),
        ("show-config-22.05.txt", "slurm 25.11.4", False),
    ],
    ids=["25.11", "26.05", "older client", "client of no version", "not allowed"],
)
def test_expedited_requeue_takes_a_site_and_a_client_that_know_it(clients, config, client, expected):
    clients.program("scontrol", f"case $1 in show) cat '{RECORDED / config}' ;; *) echo '{client}' ;; esac")
    assert SlurmSystem().expedites is expected


def test_the_configuration_of_other_versions():
    older, newer = read_config(recorded("show-config-20.11.txt")), read_config(recorded("show-config-24.11.txt"))
    assert (older.version, older.requeue, older.accounting, older.preempt_mode) == ("20.11.9", False, False, "OFF")
    assert (newer.version, newer.requeue, newer.accounting) == ("24.11.1", True, False)
    assert (newer.max_array_size, newer.kill_wait_s, newer.preempt_mode) == (100_001, 30.0, "GANG,SUSPEND")


def test_what_the_configuration_does_not_say_is_not_known():
    config = read_config("slurm_load_ctl_conf error: no\nKillWait = soon\nJobRequeue = maybe\n")
    assert (config.version, config.requeue, config.kill_wait_s, config.accounting) == (None, None, None, None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8\n", "22.05.8"),
        ("slurm 24.11.1-1\n", "24.11.1-1"),
        ("hi\nslurm 20.11.9", "20.11.9"),
        ("", None),
    ],
)
def test_versions(text, version):
    assert read_version(text) == version


# Values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-12:00:00", 129_600.0),
        ("2-00", 172_800.0),
        ("1-06:30", 109_800.0),
        ("12:00:01", 43_201.0),
        ("10:00", 600.0),
        ("1:00", 60.0),
        ("30", 1_800.0),
        ("infinite", math.inf),
        ("UNLIMITED", math.inf),
        ("n/a", None),
        ("", None),
        ("1:2:3:4", None),
        ("-5", None),
        ("INVALID", None),
    ],
)
def test_durations(text, seconds):
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "N/A",
        "Unknown",
        "None",
        "NONE",
        "",
        "0",
        "34007521738",
        "9" * 15,
        "9" * 400,
        "#####",
        "²",
        "9999-12-31",
        "0001-01-01",
    ],
)
@pytest.mark.usefixtures("in_berlin")  # where the first of all dates begins before there were any
def test_no_date(text):
    assert read_time(text) is None


def test_garbage_never_raises_anything_but_unreachable():
    seed = SEED
    print(f"seed {seed}")
    draw = random.Random(seed)
    texts = [path.read_bytes().decode() for path in sorted(RECORDED.glob("*.txt"))]
    named = {name: getattr(module, name) for module in (jobs, nodes, site) for name in dir(module)}
    special = ("read_sacct", "read_rows")
    readers = [read for name, read in named.items() if name.startswith("read_") and name not in special]
    readers += [gpu_count, lambda text: read_sacct(0, text, text[:40])]
    assert len(readers) == 21
    read = refused = 0
    for _ in range(3_000):
        text = spoilt(draw.choice(texts), draw)
        for reader in readers:
            try:
                reader(text)
                read += 1
            except Unreachable:
                assert reader is read_jobs
                refused += 1
    assert read > 30_000
    assert refused > 100


def spoilt(text, draw):
    """A piece of it, with some characters changed, doubled or left out."""
    start = draw.randrange(len(text))
    characters = list(text[start : start + draw.randint(1, 400)])
    odd = [
        "",
        FIELD,
        ROW,
        "\n",
        "\0",
        "\r",
        "\x85",
        "\u2028",
        "²",
        "٣",
        "9" * 30,
        "-",
        ":",
        "+",
        "=",
        "[",
        "(",
        "1e9",
        " ",
    ]
    for _ in range(draw.randint(0, 12)):
        characters[draw.randrange(len(characters))] = draw.choice(odd)
    return "".join(characters)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["node1", "node2"], "node1,node2"),
        (["node1", "node2", "node3"], "node[1-3]"),
        (["node8", "node9", "node10", "node12", "node13"], "node[8-10],node12,node13"),
        (["n098", "n099", "n100", "n101", "n1", "m102"], "n[098-101],n1,m102"),
        (["gpu[08-09]", "r1-7", "r1-8", "r1-9", "r2-10", "login", "login"], "gpu[08-09],r1-[7-9],r2-10,login,login"),
        (
            ["node3", "node2", "node1", "1234567890", "1234567891", "1234567892"],
            "node3,node2,node1,1234567890,1234567891,1234567892",
        ),
    ],
)
def test_hosts_that_follow_each_other_are_one_word(hosts, text):
    assert hostlist(hosts) == text


def test_a_job_of_any_size_can_name_its_hosts_to_a_program():
    hosts = [f"cluster-rack-node{number:05d}" for number in range(1, 12_501)]
    assert hostlist(hosts) == "cluster-rack-node[00001-12500]"
    assert all(is_in_hostlist(host, hostlist(hosts)) for host in (hosts[0], hosts[99], hosts[-1]))
    assert not is_in_hostlist("cluster-rack-node12501", hostlist(hosts))
