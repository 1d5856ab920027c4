"""Two sides of a cut network never both go on, whatever the numbers."""

from launcher.plan.on_hosts import may_take_over, quorum


def test_never_both_sides_and_one_unless_the_network_is_cut_in_many():
    for hosts in range(1, 40):
        for there in range(hosts + 1):
            elsewhere = hosts - there
            assert not (there >= quorum(hosts) and may_take_over(elsewhere, hosts)), (hosts, there)
            assert not (may_take_over(there, hosts) and may_take_over(elsewhere, hosts)), "two candidates"
            assert there < quorum(hosts) or there >= elsewhere, "half of them with the leader, and no fewer"
        assert hosts - hosts // 2 >= quorum(hosts)
        assert may_take_over(hosts - 1, hosts) == (hosts > 2)
    assert not may_take_over(1, 2)
