"""recovery.health on hosts, while ranks run: those of one whose kernel tells of a failing device go to a spare."""

import contextlib

import pytest

FAILS = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Channel#1_DIMM#0"


@pytest.fixture
def kernels(desk, tmp_path):
    """Give each host a kernel log of its own in place of this machine's."""
    paths = []
    with contextlib.ExitStack() as stack:
        for index, node in enumerate(desk.hosts.nodes):
            paths.append(tmp_path / f"kmsg-{index}")
            paths[-1].write_text("6,1,1,-;EDAC MC0: 1 UE of the day before on DIMM 0\n")
            mounted = node.exec("mount", "--bind", str(paths[-1]), "/dev/kmsg")
            assert mounted.returncode == 0, mounted.stderr
            stack.callback(node.exec, "umount", "/dev/kmsg")
        yield paths


def test_ranks_leave_a_host_before_its_memory_fails(desk, kernels):
    run = desk.submit(desk.job(400, more="recovery: {health: true, spares: 1}\n", hold=399), "--on", "pool")
    desk.until_step_there(0, run, 3)
    with kernels[1].open("a") as kernel:
        kernel.write(f"2,3,3,-;{FAILS}\n SUBSYSTEM=edac\n")

    def moved():
        state = desk.state_there(0, run)
        return (state["generation"], state["nodes"][1]["state"]) == (2, "drained")

    desk.until("its ranks elsewhere", moved)
    desk.let_go()
    status = desk.wait(run)
    assert (status["attempt"], status["restarts"]["total"]) == (1, 0), "a planned move is no restart"
    [asked] = desk.events(run, "drain_asked")
    assert asked["text"] == f"node 1 is to be drained (its kernel tells of an uncorrected memory error: {FAILS})"
    assert not desk.events(run, "no_reserve"), "none was asked for"
    assert status["fingerprint"] == desk.fingerprint_here(400)
