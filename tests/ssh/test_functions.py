"""A Python function as a job on hosts with a disk each: its arguments go there, and its result comes home."""

from function_job import check_function


def test_a_function_goes_to_hosts_and_its_result_comes_home(desk):
    run, found = check_function(desk, "pool")
    assert found["folder"] != str(desk.run_dir(run) / "code"), "it ran on a host's own disk"
