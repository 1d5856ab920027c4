"""How many of the hosts of a run must be together, where no disk is common to all that could tell who is the newest."""


def quorum(hosts: int) -> int:
    """For those with the leader half of them: the others never take over with only half."""
    return (hosts + 1) // 2


def may_take_over(there: int, hosts: int) -> bool:
    """Without the leader more than half is needed."""
    return 2 * there > hosts
