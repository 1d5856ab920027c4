"""Where the time of traced steps went: from traces that are written down here, in milliseconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.loop.trace_summary import merged, summary_of, traced, united, without

SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 10)).map(lambda one: (one[0], one[0] + one[1])), max_size=12
)


def event(name, begin, end, cat="cpu_op", **args):
    return {"ph": "X", "name": name, "cat": cat, "ts": begin * 1000.0, "dur": (end - begin) * 1000.0, "args": args}


def lap(phase, at):
    return event(f"lap {phase}", at, at, "user_annotation")


def gloo(name, begin, end, count):
    shape = {"Input Dims": [[count]], "Input type": ["float"]}
    return event(f"gloo:{name}", begin, end, "user_annotation", **shape)


def step(late=0, ends=60):
    """Return a rank's trace: 10 ms of data, 10 of forward, a backward pass with two messages, 5 of the optimizer."""
    computes = 40 + late
    return [
        lap("other", 0), lap("data", 10), lap("forward", 20 + late), event("aten::conv2d", 10, 20 + late),
        event("autograd::engine::evaluate_function: X", 20 + late, ends), event("aten::mm", 20 + late, computes),
        event("c10d::allreduce_", 30, ends), gloo("all_reduce", 25 + late, 35 + late, 1000),
        gloo("all_reduce", 35 + late, ends, 500), lap("backward", ends), lap("optimizer", ends + 5),
        lap("other", ends + 10),
    ]  # fmt: skip


def shares(found):
    return {name: round(found[name] * 1000, 3) for name in found if found[name]}


def test_what_a_rank_alone_does_is_all_its_own():
    events = [lap("other", 0), lap("data", 4), lap("forward", 10), event("aten::mm", 4, 10), lap("optimizer", 12)]
    found = shares(merged([traced(events)], 1))
    assert found == {"data": 4, "compute": 6, "optimizer": 2, "step": 12}


def test_of_a_collective_counts_what_nothing_is_computed_in():
    rank = traced(step())
    first, second = rank.collectives
    assert (first.open_s, first.sent, first.phase) == (0, 4000, "backward")
    assert second.open_s == pytest.approx(0.020)
    found = shares(merged([rank], 1))
    assert found["communication"] == 20 and "straggler" not in found
    assert (found["hidden"], found["compute"], found["step"]) == (15, 30, 70)
    assert (found["bytes"], found["messages"]) == (6_000_000, 2000), "per step, as numbers of a step"


def test_what_others_wait_for_the_slower_rank_is_no_transfer():
    """The late one sees the last message take 15 ms, 10 of them in the open; the other stands there for 20."""
    ranks = [traced(step(late=0)), traced(step(late=10))]
    found = shares(merged(ranks, 1))
    assert found["communication"] == 12.5, "15 ms and 10"
    assert found["straggler"] == 2.5, "5 ms of one of two ranks"
    assert found["compute"] == 35


def test_kinds_of_work_add_up_to_the_step():
    found = merged([traced(step(0)), traced(step(7))], 1)
    parts = ("data", "compute", "optimizer", "communication", "straggler", "other")
    assert sum(found[name] for name in parts) == pytest.approx(found["step"])


def test_a_message_that_not_all_ranks_saw_is_all_transfer():
    alone = [lap("other", 0), gloo("broadcast", 2, 9, 8), lap("forward", 10)]
    found = shares(merged([traced(alone), traced([lap("other", 0), lap("forward", 10)])], 1))
    assert found["communication"] == 3.5 and "straggler" not in found


def test_gaps_between_operators_are_no_waiting():
    works = [event("aten::mm", at, at + 0.95) for at in range(10)]
    found = merged([traced([lap("other", 0), gloo("all_reduce", 0, 10, 8), *works, lap("backward", 10)])], 1)
    assert found["communication"] == 0


def test_an_operator_that_waits_is_in_the_open():
    waits = [event("aten::embedding", 0, 10), event("_c10d_functional::wait_tensor", 2, 8)]
    found = merged([traced([lap("other", 0), gloo("all_gather", 0, 10, 8), *waits, lap("forward", 10)])], 1)
    assert found["communication"] == pytest.approx(0.006)


def test_copies_for_messages_are_communication():
    """Whether a message is under way meanwhile or not."""
    copies = [event("torch::distributed::reducer::mul_out", 1, 3), event("aten::mul", 1, 3)]
    copies.append(event("fsdp::all_gather_copy_in", 8, 9))
    events = [lap("other", 0), *copies, gloo("all_reduce", 2, 6, 8), event("aten::mm", 3, 8), lap("backward", 10)]
    found = shares(merged([traced(events)], 1))
    assert (found["communication"], found["compute"], found["step"]) == (3, 7, 10)


def test_of_a_gpu_its_own_time_counts():
    """Kernels run later than they were asked for; while the host waits for data it has nothing to do."""

    def kernel(name, begin, end, number, asked, **args):
        launch = event("cudaLaunchKernel", asked, asked, "cuda_runtime", correlation=number)
        return [launch, event(name, begin, end, "kernel", correlation=number, **args)]

    sends = {"In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
    events = [
        lap("other", 0), lap("data", 10), lap("forward", 12), lap("backward", 14), lap("optimizer", 15),
        lap("other", 50),
        *kernel("gemm", 12, 22, 1, 11), *kernel("gemm", 22, 32, 2, 13),
        *kernel("ncclDevKernel_AllReduce_Sum_f32_RING", 27, 42, 3, 13.5, **sends), *kernel("adam", 42, 45, 4, 14.5),
    ]  # fmt: skip
    found = shares(merged([traced(events)], 1))
    assert found == {
        "data": 10, "compute": 20, "communication": 10, "hidden": 5, "optimizer": 3, "other": 7, "step": 50,
        "bytes": 4_000_000, "messages": 1000,
    }  # fmt: skip


def test_a_trace_without_marks_says_nothing():
    assert merged([traced([event("aten::mm", 0, 1)])], 1)["step"] == 0


def test_in_words():
    told = summary_of(merged([traced(step())], 1))
    assert told == (
        "a step of 0.07 s, traced: 14% waiting for data, 43% forward and backward, 7% optimizer, "
        "29% communication in the open (0.006 MB in 2 messages), 7% other"
    )


@given(SPANS, SPANS)
def test_spans_without_others(one, other):
    one, other = united(one), united(other)
    points = {point for begin, end in one for point in range(begin, end)}
    points -= {point for begin, end in other for point in range(begin, end)}
    assert points == {point for begin, end in without(one, other) for point in range(begin, end)}
