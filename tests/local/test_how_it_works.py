"""The page of how it works names every process of a run, and what listens."""

from process_names import listening, names_of, told_on_the_page


def test_every_process_of_a_run_has_its_name_and_the_page_says_so(lab):
    spec = lab.chain(args="steps: 12", resources="nodes: 2\nranks_per_node: 2", hold=2, more="")
    run = lab.submit(spec, "--set", "run.preload=[decimal]")
    lab.until_step(run, 2)
    each = {"launch-agent": 2, "launch-watchdog": 2, "launch-zygote": 2, "launch-standby": 2, "rank": 4}
    lab.until("the standbys", lambda: names_of(lab.processes())["launch-standby"] == 2)
    found = lab.processes()
    assert names_of(found) == {"launch-super": 1, **each}
    assert {*names_of(found)} - {"rank"} == told_on_the_page()
    assert listening(found) == {"launch-agent": 1}  # the coordinator's; of these ranks none opens a store
    lab.let_go()
    assert lab.wait(run)["state"] == "succeeded"
