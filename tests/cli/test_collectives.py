"""`launch doctor --collectives`: what is refused before anything is started."""

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--collectives", "--ranks", "1"], "--ranks: expected numbers of at least 2, got 1"),
        (["--collectives", "--ranks", "2,two"], "expected a number above 0, got 'two'"),
        (["--collectives", "--nodes", "2", "--ranks", "3"], "--ranks: expected as many on each of 2 nodes, got 3"),
        (["--collectives", "--sizes", "1KB..x"], "expected a size like 64KB or 4MB, up to 4GB, got 'x'"),
        (["--collectives", "--sizes", "4MB..1KB"], "expected sizes like 1KB..64MB, got '4MB..1KB'"),
        (["--collectives", "--try"], "--try is not of --collectives"),
        (["--collectives", "--clusters", "pools.yaml"], "--clusters is not of --collectives"),
        (["--sizes", "1KB"], "--sizes is of --collectives"),
        (["-o", "page.html"], "--output is of --collectives"),
        (["slurm", "--nodes", "3"], "--nodes: expected 1 or 2, got 3"),
        (["nowhere", "--collectives"], "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(desk, words, said):
    done = desk.launch("doctor", *words, check=2)
    assert said in done.stderr
    assert done.stdout == ""
    assert not (desk.root / ".launch").exists()
