"""`launch doctor` of this machine, and what it says of clusters that are elsewhere or nowhere."""

import json
import subprocess
import sys

import pytest

ABOUT = ["python", "cores", "GPUs", "/dev/shm", "runs root", "state folder", "open files", "clock", "torch"]


@pytest.fixture
def ranks(desk, tmp_path):
    """The environment of ranks: its interpreter says of torch what it is told to."""
    desk.env["VIRTUAL_ENV"] = str(tmp_path / "theirs")
    desk.env["LAUNCH_RUNS"] = str(tmp_path / "runs")
    program = tmp_path / "theirs" / "bin" / "python"
    program.parent.mkdir(parents=True)

    def ranks(script):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    ranks('echo \'["2.10.0", "", 0]\'')
    return ranks


def abouts(text):
    """The subjects of lines; hints and tables have none."""
    return [line[9:24].strip() for line in text.splitlines() if not line.startswith(" ")]


def test_this_machine(desk, ranks, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    done = desk.launch("doctor")
    assert abouts(done.stdout) == ABOUT
    assert all(line.startswith(("ok ", "warning ", " ")) for line in done.stdout.splitlines())
    assert f"runs root      {tmp_path}/runs (not there yet), " in done.stdout
    assert f"2.10.0 (CPU only) in {tmp_path}/theirs/bin/python" in done.stdout
    assert desk.launch("doctor", "local").stdout.splitlines()[0] == done.stdout.splitlines()[0]
    kept = tmp_path / "state/launch/check-ups/local.json"
    assert {*tmp_path.rglob("*")} - {*before} == {kept, *[path for path in kept.parents if path not in before]} - {
        *tmp_path.parents, tmp_path
    }  # fmt: skip
    told = json.loads(kept.read_bytes())
    assert [one["about"] for one in told["findings"]] == ABOUT
    assert not told["trial"]


def test_warnings_are_counted_and_do_no_harm(desk, ranks):
    ranks("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")
    done = desk.launch("doctor")
    *_, torch, hint = done.stdout.splitlines()
    assert torch.startswith("warning  torch          not installed in ")
    assert hint.startswith(" " * 24 + "hint: ")
    assert "warning" in done.stderr and "problem" not in done.stderr


def test_a_problem_has_its_exit_code(desk, ranks):
    desk.env["LAUNCH_RUNS"] = "/proc/self/runs"
    done = desk.launch("doctor", check=4)
    assert "problem  runs root      /proc/self/runs: " in done.stdout
    assert done.stderr.startswith("1 problem")
    assert abouts(done.stdout) == ABOUT


def test_as_json(desk, ranks):
    desk.env["LAUNCH_RUNS"] = "/proc/self/runs"
    done = desk.launch("doctor", "--json", check=4)
    found = json.loads(done.stdout)
    assert [one["about"] for one in found] == ABOUT
    (bad,) = [one for one in found if one["level"] == "problem"]
    assert bad["about"] == "runs root" and bad["hint"] and not bad["unreachable"]
    assert done.stderr == ""


def test_on_a_terminal_lines_are_folded_and_coloured(desk, ranks):
    desk.env["LAUNCH_RUNS"] = f"/proc/self/{'long-' * 20}/runs"
    code, shown = desk.on_terminal("doctor")
    assert code == 4
    assert "\x1b[31mproblem  \x1b[0mruns root" in shown and "\x1b[32mok       \x1b[0mpython" in shown
    hints = [line for line in shown.replace("\r", "").splitlines() if line.startswith(" " * 24)]
    assert len(hints) > 1 and max(len(line) for line in hints if " " in line.strip()) <= 100


def test_controls_in_a_name_do_not_reach_the_terminal(desk, ranks):
    desk.env["LAUNCH_RUNS"] = "/proc/self/\x1b[2J\n/runs"
    assert "\x1b" not in desk.launch("doctor", check=4).stdout


# Clusters


def without_slurm(desk, tmp_path):
    """Set PATH to an empty folder, so that no command of Slurm is found."""
    (tmp_path / "bin").mkdir()
    desk.env["PATH"] = str(tmp_path / "bin")


def test_slurm_where_there_is_none(desk, ranks, tmp_path):
    without_slurm(desk, tmp_path)
    done = desk.launch("doctor", "slurm", "--try", check=4)
    assert done.stdout.splitlines()[0] == "problem  sbatch         not on PATH"
    assert abouts(done.stdout) == ["sbatch", "runs root", "programs"]


def clusters(desk, text):
    path = desk.root / "clusters.yaml"
    path.write_text(text)
    path.chmod(0o600)
    desk.env["LAUNCH_CLUSTERS"] = str(path)


def test_a_cluster_with_a_login_node_is_looked_at_there(desk, ranks):
    clusters(desk, "hpc: {kind: slurm, login: me@there, launch: ~/venv/bin/launch, cluster: gpus}\n")
    done = desk.launch("doctor", "hpc", check=4)
    assert done.stdout == ""
    assert "from its login node, me@there" in done.stderr
    assert "hint: ssh me@there '~/venv/bin/launch' doctor gpus" in done.stderr


def test_a_cluster_that_nobody_knows(desk, ranks):
    clusters(desk, "hpc: {kind: slurm}\n")
    assert desk.launch("doctor", "hcp", check=2).stderr == "launch: hcp: no such cluster\nhint: did you mean hpc?\n"


FAKE = """#!/bin/sh
echo "$0 $*" >> {log}
case "$0 $*" in
  *sbatch*--version) echo "slurm 23.02.1" ;;
  *scontrol*config) echo "SLURM_VERSION = 23.02.1"; echo "ClusterName = fake" ;;
  *sinfo*--Node*) printf 'n1\\037gpu*\\037idle\\0378\\0378000\\037gpu:2\\037none\\036' ;;
  *sinfo*) printf 'gpu*\\037up\\0371:00:00\\037n/a\\0370/1/0/1\\036' ;;
  *sbatch*--test-only*) echo "sbatch: error: Invalid account" >&2; exit 1 ;;
esac
"""


def test_the_clusters_file_says_which_partition_and_account_are_usual(desk, ranks, tmp_path):
    without_slurm(desk, tmp_path)
    for name in ("sbatch", "scontrol", "sinfo", "sacct"):
        (tmp_path / "bin" / name).write_text(FAKE.format(log=tmp_path / "log"))
        (tmp_path / "bin" / name).chmod(0o755)
    clusters(desk, "hpc: {kind: slurm, defaults: {partition: gpu, account: '007'}}\n")
    done = desk.launch("doctor", "hpc", "--account", "mine", check=4)
    assert "Slurm would refuse a job of one node: Invalid account" in done.stdout
    asked = (tmp_path / "log").read_text()
    assert "--partition=gpu" in asked and "--account=mine" in asked and "--gres=gpu:1" in asked
    desk.launch("doctor", "hpc", check=4)
    assert "--account=007" in (tmp_path / "log").read_text()


def test_a_client_that_hangs_is_given_up(desk, ranks, tmp_path):
    without_slurm(desk, tmp_path)
    for name, script in (("sbatch", "echo slurm 23.02.1"), ("scontrol", "exec /bin/sleep 600")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = desk.launch("doctor", "slurm", check=5)
    assert "the Slurm controller does not answer (scontrol: nothing within 10 s)" in done.stdout


# The command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--try"], "--try is of Slurm clusters"),
        (["local", "--partition", "main"], "--partition is of Slurm clusters"),
        (["slurm", "--nodes", "3"], "--nodes: expected 1 or 2, got 3"),
        (["slurm", "--within", "soon"], "expected seconds such as 60"),
        (["slurm", "--within", "-1"], "expected seconds such as 60"),
        (["slurm", "--partition", "--try"], "expected one argument"),
        (["slurm", "--partition=--uid=0"], "expected a name"),
        (["slurm", "--account=a b"], "expected a name"),
        (["slurm", "--qos="], "expected a name"),
    ],
)
def test_what_it_does_not_take(desk, ranks, words, said):
    done = desk.launch("doctor", *words, check=2)
    assert said in done.stderr and done.stdout == ""


@pytest.mark.parametrize("command", ["status", "--help"])
def test_its_modules_cost_other_commands_nothing(desk, command):
    look = "import sys; from launcher.cli.main import main; main(sys.argv[1:]); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", look, command], env=desk.env, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "launcher.cli.main" in loaded and ("launcher.cli.looking.status" in loaded) == (command == "status")
    assert not [name for name in loaded if "doctor" in name]


def test_health_alone(desk, ranks, tmp_path):
    """The interpreter of ranks is asked, once for each device; the last check-up stays what it was."""
    ranks(f'exec {sys.executable} "$@"')
    line, links = desk.launch("doctor", "--health").stdout.splitlines()
    assert links.startswith("ok       links          none on one machine")
    assert line.startswith("ok       health         cpu (") and "matmul float32 exact on" in line
    ranks(
        'echo \'{"begins": "memory"}\'; echo \'{"part": "memory", "fit": false, "expected": "1", "seen": "2"}\'; exit 1'
    )
    done = desk.launch("doctor", "--health", check=4)
    assert "problem  health         cpu: memory: expected 1, got 2\n" in done.stdout
    ranks("exit 3")
    done = desk.launch("doctor", "--health")
    assert "warning  health         cpu: the check: its process left with exit code 3\n" in done.stdout
    assert not (tmp_path / "state/launch/check-ups/local.json").exists()


def test_health_is_of_this_machine(desk):
    assert "launch: --health is of this machine" in desk.launch("doctor", "slurm", "--health", check=2).stderr
