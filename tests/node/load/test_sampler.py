"""From counters to figures, and what a GPU's driver says: pure, or on made-up files."""

import ctypes
import json
import os
from types import SimpleNamespace

import pytest

from launcher.node.load.gpus import Gpu, Gpus
from launcher.node.load.sampler import (
    KEPT_SAMPLES,
    MachineUse,
    Sampler,
    TreeUse,
    machine_use,
    named_values,
    node_load,
    rank_load,
)
from launcher.node.ranks.reports.metrics_file import MetricsFile
from launcher.plan.model import NodePlan
from launcher.run.records import GpuLoad, NodeLoad, RankLoad

GB = 1 << 30


def use(cpu_s=0.0, memory=0, read=0, written=0, pids=(7,)):
    return TreeUse(100.0, cpu_s, memory, read, written, frozenset(pids))


def test_a_rank_is_the_average_since_the_look_before():
    load = rank_load(3, (200.0, use(10.0, read=1000)), (205.0, use(15.0, 300, read=6000, written=50)), ())
    assert (load.rank, load.cpu, load.memory, load.read, load.written, load.processes) == (3, 1.0, 300, 1000, 10, 1)


def test_the_first_time_it_is_the_average_since_its_start():
    assert rank_load(0, None, (104.0, use(2.0)), ()).cpu == 0.5
    assert rank_load(0, None, (100.0, use(0.0)), ()).cpu == 0.0


def test_what_counted_more_before_is_nothing_and_not_less():
    load = rank_load(0, (200.0, use(10.0, read=9000)), (205.0, use(4.0, read=0)), ())
    assert (load.cpu, load.read) == (0.0, 0)


def test_a_rank_has_the_gpus_on_which_its_processes_hold_memory():
    cards = [Gpu(GpuLoad(index, 5 * GB, 80 * GB, 90), held) for index, held in enumerate(({7: GB}, {9: GB}, {8: 2}))]
    load = rank_load(0, None, (104.0, use(pids=(7, 8))), cards)
    assert (load.gpus, load.gpu_memory) == ((0, 2), GB + 2)


def test_a_node_is_its_machine():
    before, now = MachineUse(100.0, 0, 0, 0, 0, 0, 0), MachineUse(110.0, 5, 9, 50, 100, 150, 200)
    load = node_load(1, (10.0, before), (15.0, now), (), ())
    assert (load.node, load.cpu, load.memory, load.memory_total) == (1, 2.0, 5, 9)
    assert (load.received, load.sent, load.read, load.written) == (10, 20, 30, 40)
    assert load.cores == os.cpu_count()


@pytest.fixture
def machine(tmp_path):
    """Writes /proc and /sys of a machine: a bond of two cards, a bridge of containers, a disk with a volume on it."""
    net = "Inter-|   Receive\n face |bytes\n"
    for name, received, sent in (("lo", 1, 1), ("eth0", 10, 20), ("eth1", 30, 40), ("bond0", 40, 60), ("br0", 5, 5)):
        net += f"  {name}: {received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n"
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
    for name in ("eth0", "eth1"):
        (tmp_path / "sys/class/net" / name / "device").mkdir()
        (tmp_path / "sys/class/net/bond0" / f"lower_{name}").mkdir()
    (tmp_path / "sys/block/sda/device").mkdir(parents=True)
    (tmp_path / "sys/block/dm-0").mkdir()
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    port.mkdir(parents=True)
    (port / "port_rcv_data").write_text("25\n")
    (port / "port_xmit_data").write_text("50\n")
    proc = tmp_path / "proc"
    (proc / "net").mkdir(parents=True)
    (proc / "net/dev").write_text(net)
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n")
    ticks = os.sysconf("SC_CLK_TCK")
    (proc / "stat").write_text(f"cpu  {ticks} {ticks} {ticks} {9 * ticks} {9 * ticks} 0 {ticks} 0 7 7\ncpu0 1 1 1 1\n")
    (proc / "diskstats").write_text(
        "8 0 sda 1 0 10 0 1 0 20 0 0 0 0\n8 1 sda1 1 0 10 0 1 0 20 0 0 0 0\n253 0 dm-0 1 0 10 0 1 0 20 0 0 0 0\n"
    )
    return tmp_path


def test_what_a_machine_counts(machine):
    found = machine_use("bond0", machine)
    assert found == MachineUse(4.0, 600 * 1024, 1000 * 1024, 40 + 100, 60 + 200, 10 * 512, 20 * 512)
    assert machine_use("lo", machine).received == 1 + 10 + 30 + 100
    assert machine_use(None, machine).received == 10 + 30 + 100


def test_a_machine_that_tells_nothing_is_all_zero(tmp_path):
    assert machine_use("eth0", tmp_path) == MachineUse()


def test_this_machine_is_busy_by_what_it_has():
    load = Sampler(NodePlan(2, "127.0.0.1", spare=False, gpus=()), lambda: {0: os.getpid()}).sample(Gpus(""))
    assert (load.node, [one.rank for one in load.ranks], load.gpus) == (2, [0], ())
    assert 0 < load.memory <= load.memory_total
    assert load.ranks[0].memory > 0


def count(number):
    number._obj.value = 3
    return 0


def handle(index, device):
    device._obj.value = index + 1
    return 0


def uuid(device, name, size):
    name.value = f"GPU-{'abc'[device.value - 1]}000".encode()
    return 0


def memory(device, answer):
    answer._obj.total, answer._obj.used = 80 * GB, device.value * GB
    return 15 if device.value == 3 else 0


def utilization(device, busy):
    busy._obj.gpu = 97
    return 3 if device.value == 2 else 0


def processes(device, number, found):
    found[0].pid, found[0].memory = 7, GB
    found[1].pid, found[1].memory = 8, ctypes.c_ulonglong(-1).value
    number._obj.value = 2
    return 0


@pytest.fixture
def driver():
    """NVIDIA's library on a machine with three GPUs; one says nothing of how busy it is, and one is broken."""
    return SimpleNamespace(
        nvmlDeviceGetCount_v2=count,
        nvmlDeviceGetHandleByIndex_v2=handle,
        nvmlDeviceGetUUID=uuid,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetComputeRunningProcesses_v3=processes,
    )


@pytest.mark.parametrize(
    ("visible", "seen"),
    [(None, [0, 1]), ("0,1,2", [0, 1]), ("1", [1]), ("GPU-a", [0]), ("", []), ("7", []), ("GPU-c", [])],
)
def test_the_gpus_of_the_node(driver, visible, seen):
    assert [gpu.load.index for gpu in Gpus(visible, driver).look()] == seen


def test_how_busy_they_are_and_who_holds_memory(driver):
    first, second = Gpus(None, driver).look()
    assert first == Gpu(GpuLoad(0, GB, 80 * GB, 97), {7: GB, 8: 0})
    assert second.load.busy is None


def test_an_old_driver_does_not_say_who(driver):
    del driver.nvmlDeviceGetComputeRunningProcesses_v3
    assert Gpus("0", driver).look()[0].held == {}


def test_samples_are_kept_as_metrics_while_ranks_live(tmp_path):
    path = tmp_path / "system.n002.a0001.jsonl"
    pids = {}
    kept = MetricsFile(path, 0, kept_whole=10)
    node = NodePlan(2, "127.0.0.1", spare=False, gpus=())
    sampler = Sampler(node, lambda: pids, kept=kept)
    sampler.take(Gpus(""))
    pids[3] = os.getpid()
    sampler.take(Gpus(""))
    sampler.close()
    start, line = map(json.loads, path.read_text().splitlines()[1:])
    assert start == {"generation": 0}
    assert {"node2/cpu", "node2/memory", "node2/received", "rank3/cpu", "rank3/memory"} <= line["values"].keys()
    assert line["step"] == int(line["at"])


def test_each_gpu_has_its_curves():
    load = NodeLoad(
        0,
        1.0,
        8,
        2.0,
        10,
        20,
        gpus=(GpuLoad(1, 5, 9, 80), GpuLoad(2, 6, 9)),
        ranks=(RankLoad(0, 1.0, 7, gpus=(1,), gpu_memory=4),),
    )
    values = named_values(load)
    assert (values["node0/gpu1/busy"], values["node0/gpu2/gpu_memory"], values["rank0/gpu_memory"]) == (80, 6, 4)
    assert "node0/gpu2/busy" not in values


def test_kept_samples_are_further_apart_as_the_run_grows_older(tmp_path):
    """Two weeks of a sample every five seconds."""
    now = [0.0]
    kept = MetricsFile(tmp_path / "x.jsonl", 0, lambda: now[0], KEPT_SAMPLES, KEPT_SAMPLES)
    for step in range(14 * 86400 // 5):
        now[0] = step * 5.0
        kept.add(0, step, {"cpu": 1.0})
    kept.close()
    lines = (tmp_path / "x.jsonl").read_text().splitlines()
    assert KEPT_SAMPLES < len(lines) < 10 * KEPT_SAMPLES
