"""How long an agent that died is away."""

from pathlib import Path

from launcher.clusters.keeping.agent_processes import RETURN_AT_ONCE_S, AgentProcess


def test_deaths_in_a_row_make_it_stay_away_longer_and_a_long_life_makes_up_for_them():
    agent, now, away = AgentProcess([], {}, Path("agent.log")), 1000.0, []
    for lived_s in (1, 1, 1, 299, 301, 1):
        agent.started_at = now
        now += lived_s
        agent.stay_away(now, RETURN_AT_ONCE_S)
        away.append(agent.returns_at - now)
        now = agent.returns_at
    assert away == [0.0, 1.0, 2.0, 4.0, 0.0, 1.0]
