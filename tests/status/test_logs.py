"""The merged log, over folders as ranks and agents leave them."""

import os
import tempfile
import threading
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from run_folder import RunFolder, dead_process

from launcher.run.records import RankState
from launcher.states import State
from launcher.status.logs import LogReader, merged_logs
from tests.sizes import SCALE


def shown(folder, **more):
    return [(line.rank, line.text) for line in merged_logs(folder.run, **more)]


def test_by_time_then_by_rank(folder):
    folder.log(0, "a\nb\n", times=[(1.0, 2), (3.0, 4)]).log(1, "c\nd\n", times=[(1.0, 2), (2.0, 4)])
    assert shown(folder) == [(0, "a"), (1, "c"), (1, "d"), (0, "b")]
    assert [line.at for line in merged_logs(folder.run)] == [1.0, 1.0, 2.0, 3.0]


def test_a_line_has_the_time_by_which_its_end_was_there(folder):
    folder.log(0, "first\nsecond\nthird\n", times=[(1.0, 8), (2.0, 19)])
    assert [line.at for line in merged_logs(folder.run)] == [1.0, 2.0, 2.0]


def test_what_nobody_timed_comes_last_and_is_not_lost(folder):
    folder.log(0, "a\nb\n", times=[(1.0, 2)]).log(1, "c\n", times=[(5.0, 2)])
    assert [(line.at, line.text) for line in merged_logs(folder.run)] == [(1.0, "a"), (5.0, "c"), (None, "b")]


def test_a_torn_or_damaged_times_file_does_no_harm(folder):
    folder.log(0, "a\nb\n")
    folder.run.rank_log(1, 1, 0).with_suffix(".times").write_bytes(
        b"1000 2\n17643371764337000123 3\n1000 %s\n%s 3\nnonsense\n\xff 3\n\n20" % (b"9" * 19, b"9" * 5000)
    )
    assert shown(folder) == [(0, "a"), (0, "b")]


def test_generations_and_attempts_follow_one_another(folder):
    folder.log(0, "g1\n", times=[(9.0, 3)]).log(0, "g2\n", times=[(5.0, 3)], generation=2)
    folder.log(0, "a2\n", times=[(1.0, 3)], attempt=2)
    where = [(line.attempt, line.generation, line.text) for line in merged_logs(folder.run)]
    assert where == [(1, 1, "g1"), (1, 2, "g2"), (2, 1, "a2")]


def test_some_ranks_only(folder):
    folder.log(0, "a\n").log(1, "b\n").log(2, "c\n")
    assert shown(folder, ranks=[0, 2]) == [(0, "a"), (2, "c")]
    assert shown(folder, ranks=[]) == []


def test_the_setups_log_comes_before_the_ranks_that_it_prepared(folder):
    folder.log(0, "trains\n", times=[(1.0, 7)])
    log = folder.run.setup_log(1, 1)
    log.parent.mkdir(parents=True)
    log.write_text("installs\n")
    found = [(line.generation, line.node, line.rank, line.text) for line in merged_logs(folder.run)]
    assert found == [(0, 1, None, "installs"), (1, None, 0, "trains")]
    assert shown(folder, ranks=[0]) == [(0, "trains")]


def test_the_node_is_what_somebody_recorded(folder):
    folder.plan(nodes=2).attempt().log(0, "a\n").log(1, "b\n").log(2, "c\n")
    folder.exit(0, node=7).state(ranks=(RankState(1, 8, None, "running"),))
    assert [line.node for line in merged_logs(folder.run)] == [7, 8, None]


def test_where_there_is_one_node_it_is_that(folder):
    folder.plan(nodes=1).log(5, "a\n")
    assert [line.node for line in merged_logs(folder.run)] == [0]


def test_strange_entries_are_passed_over(folder):
    folder.log(0, "a\n")
    (folder.run.logs / "notes.txt").write_text("no folder")
    (folder.run.logs / "a0001.g0001" / "rank-x.log").write_text("no rank")
    (folder.run.logs / "a0001.g0001" / "rank-00001.log").symlink_to("/etc/passwd")
    (folder.run.logs / "a0001.g0002").symlink_to("/nowhere")
    assert shown(folder) == [(0, "a")]


def test_a_fifo_in_place_of_a_log_does_not_block(folder):
    folder.log(0, "a\n")
    os.mkfifo(folder.run.rank_log(1, 1, 1))
    assert shown(folder) == [(0, "a")]


def test_no_log_at_all(folder):
    assert shown(folder) == []


def test_reading_on_from_where_it_stopped(folder):
    reader = LogReader(folder.plan().run, clock=lambda: 42.0)
    folder.log(0, "a\nhalf", times=[(1.0, 2)])
    assert [line.text for line in reader.read(final=False)] == ["a"]
    folder.log(0, " a line\n").log(1, "late\n")
    assert [(line.at, line.text) for line in reader.read(final=False)] == [(42.0, "half a line"), (42.0, "late")]
    assert list(reader.read(final=False)) == []
    folder.log(0, "tail").log(0, "new\n", generation=2)
    assert [line.text for line in reader.read(final=False)] == ["tail", "new"], "an older generation is read to its end"
    folder.log(0, "end", generation=2)
    assert [line.text for line in reader.read(final=True)] == ["end"]


def test_new_lines_wait_a_moment_for_the_record_of_where_their_rank_runs(folder):
    reader = LogReader(folder.plan(nodes=2).run)
    folder.log(0, "early\n")
    assert list(reader.read(final=False)) == []
    folder.state(ranks=(RankState(0, 1, None, "starting"),))
    assert [(line.node, line.text) for line in reader.read(final=False)] == [(1, "early")]


def test_but_not_for_ever(folder):
    reader = LogReader(folder.plan(nodes=2).run)
    folder.log(0, "early\n")
    reads = [list(reader.read(final=False)) for _ in range(12)]
    assert [(line.node, line.text) for line in reads[10]] == [(None, "early")]
    assert sum(map(len, reads)) == 1


def test_following_ends_with_the_run_and_misses_nothing(folder):
    folder.running().log(0, "before\n")
    lines = merged_logs(folder.run, follow=True)
    assert next(lines).text == "before"

    def goes_on():
        for number in range(100):
            folder.log(0, f"line {number}\n")
        folder.log(0, "no newline")
        folder.end(State.SUCCEEDED).state(State.SUCCEEDED)

    writer = threading.Thread(target=goes_on)
    writer.start()
    rest = [line.text for line in lines]
    writer.join()
    assert rest == [*(f"line {number}" for number in range(100)), "no newline"]


def test_following_a_run_that_is_lost_ends(folder):
    folder.plan().attempt(supervisor=dead_process()).state().log(0, "last words")
    assert [line.text for line in merged_logs(folder.run, follow=True)] == ["last words"]


rank_scripts = st.lists(
    st.lists(st.tuples(st.text(alphabet="ab\r ", max_size=5), st.integers(0, 50), st.booleans()), max_size=15),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60 * SCALE, deadline=None)
@given(rank_scripts, st.data())
def test_any_interleaving_keeps_each_ranks_order_and_loses_no_line(ranks, data):
    """Clocks may go back, times may be missing, and the reader may look at any moment."""
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder(Path(root) / "run").plan()
        reader = LogReader(folder.run)
        seen = []
        waiting = [list(enumerate(lines)) for lines in ranks]
        sizes = [0] * len(ranks)
        while any(waiting):
            rank = data.draw(st.sampled_from([index for index, left in enumerate(waiting) if left]))
            number, (word, at, timed) = waiting[rank].pop(0)
            text = f"{number}:{word}!\n"
            sizes[rank] += len(text)
            folder.log(rank, text, times=[(at, sizes[rank])] if timed else [])
            if data.draw(st.booleans()):
                seen += reader.read(final=False)
        seen += reader.read(final=True)
        whole = list(merged_logs(folder.run))
    for lines in (seen, whole):
        assert len(lines) == sum(map(len, ranks))
        for rank, script in enumerate(ranks):
            expected = [f"{number}:{word}!".rpartition("\r")[2] for number, (word, _, _) in enumerate(script)]
            assert [line.text for line in lines if line.rank == rank] == expected
