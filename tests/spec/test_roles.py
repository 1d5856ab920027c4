"""Files with `roles:`: what each of them gets, and what is wrong, all at once."""

import pytest

from launcher.errors import BadInput
from launcher.spec.read import parse_spec

THREE = """\
name: three
env: {A: '1'}
recovery: {killed: 7}
roles:
  learner: {main: true, after: reward, run: {script: learner.py}, recovery: {grace: 3s}}
  actors: {run: {script: actor.py}, resources: {ranks_per_node: 4}, restart: alone}
  reward: {run: {command: [reward]}, ready: {path: /health}, recovery: {hang_after: 5m}}
"""


def test_what_stands_beside_the_roles_holds_for_all_of_them() -> None:
    spec = parse_spec(THREE, "job.yaml", ["roles.actors.run.args.lr=3"])
    assert (spec.run.script, spec.recovery.grace_s, spec.recovery.hang_after_s) == ("learner.py", 3.0, 900.0)
    assert [*spec.roles] == ["learner", "actors", "reward"]
    actors, reward = (spec.roles[name].spec for name in ("actors", "reward"))
    assert spec.roles["learner"].spec is None and actors is not None and reward is not None
    assert {one.recovery.killed.restarts for one in (spec, actors, reward)} == {7}
    assert actors.env == {"A": "1"}
    assert actors.run.args == ("--lr", "3")
    assert (actors.recovery.hang_after_s, actors.recovery.no_progress) == (None, None)
    assert reward.recovery.hang_after_s == 300.0


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (
            "{a: {run: {script: a.py}}, b: {run: {script: b.py}, ready: {port: true}}}",
            "2:1: roles: no role is the main one, and b serves others: the run has no end",
        ),
        (
            "{a: {restart: alone, run: {script: a.py}}}",
            "2:22: roles.a.restart: ranks of the first role belong together",
        ),
        (
            "{a: {main: true, run: {script: a.py}}, b: {main: true, run: {script: b.py}}}",
            "2:57: roles.b.main: a is the main role already",
        ),
        ("{a: {main: true, after: b, run: {script: a.py}}}", "2:32: roles.a.after: no role 'b'"),
        (
            "{a: {main: true, after: b, run: {script: a.py}}, b: {run: {script: b.py}}}",
            "2:32: roles.a.after: nothing says when b is ready",
        ),
        (
            "{a: {main: true, after: a, run: {script: a.py}, ready: {port: true}}}",
            "2:32: roles.a.after: none of these could ever start: a after a",
        ),
        (
            "{a: {main: true, run: {script: a.py}}, b: {follows: c, run: {script: b.py}}}",
            "roles.b.follows: no role 'c'",
        ),
        (
            "{a: {main: true, run: {script: a.py}}, b: {follows: [a, b], run: {script: b.py}}}",
            "2:60: roles.b.follows: each of these would start the others again: b follows b",
        ),
        (
            "{a: {main: true, follows: b, run: {script: a.py}}, b: {run: {script: b.py}}}",
            "2:34: roles.a.follows: the main role follows no other",
        ),
        (
            "{a: {main: true, restart: alone, run: {script: a.py}}}",
            "2:34: roles.a.restart: ranks of the main role belong together",
        ),
        (
            "{a: {main: true, run: {script: a.py}, queue: {now: true}}}",
            "2:46: roles.a.queue: is of all roles",
        ),
        ("{a: {main: true, run: {script: a.py}, ready: {}}}", "roles.a.ready: expected exactly one of port, path"),
        ("{A: {main: true, run: {script: a.py}}}", "2:9: roles.A: expected the name of a role"),
        (
            "{a: {main: true, run: {script: a.py}, ports: [http, http]}}",
            "2:60: roles.a.ports[1]: 'http' is in the list already",
        ),
        (
            "{a: {main: true, run: {script: a.py}, ports: http}, a_http: {run: {script: b.py}}}",
            "2:53: roles.a.ports: the addresses of one of them and of role a_http would have the same variable",
        ),
        (
            "{a: {main: true, run: {script: a.py}, ports: http, ready: {port: htp}}}",
            "roles.a.ready.port: no port 'htp'",
        ),
        (
            "{a: {main: true, run: {script: a.py}, ready: {port: true, path: /x}}}",
            "roles.a.ready: expected exactly one of port, path",
        ),
        ("{last: {main: true, run: {script: a.py}}}", "2:9: roles.last: expected the name of a role"),
        (
            "{a: {main: true, run: {script: a.py}}, b: {colocate: c, run: {script: b.py}}}",
            "2:61: roles.b.colocate: no role 'c'",
        ),
        (
            "{a: {main: true, colocate: b, run: {script: a.py}}, b: {run: {script: b.py}}}",
            "roles.a.colocate: the nodes of the main role are its own, and others may be on them",
        ),
        (
            "{a: {main: true, run: {script: a.py}}, b: {colocate: b, run: {script: b.py}}}",
            "roles.b.colocate: b has no nodes of its own",
        ),
        (
            "{a: {main: true, run: {script: a.py}}, b: {colocate: a, run: {script: b.py}, resources: {nodes: 2}}}",
            "roles.b.colocate: a has fewer nodes than b",
        ),
        (
            "{a: {main: true, run: {script: a}}, b: {restart: alone, run: {script: b}, resources: {nodes: 1..2}}}",
            "job.yaml:2:101: roles.b.resources.nodes: is a range, but each rank restarts alone",
        ),
        (
            """{a: {run: {script: a}}, b: {run: {script: b}, restart: alone, recovery: {spares: 1},
            resources: {nodes: 2}}}""",
            "roles.b.recovery.spares: no node steps in for a rank that restarts alone",
        ),
        ("{a: {main: true, run: {}}}", "roles.a.run"),
        ("3", "roles: expected a mapping from the names of roles to their specs"),
    ],
)
def test_each_mistake_has_its_line(roles: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_spec(f"name: x\nroles: {roles}\n", "job.yaml")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("roles", "hint"),
    [
        (
            "{a: {run: {script: a}, ready: {port: true}}}",
            "write main: true in the role with whose end the run has ended",
        ),
        (
            """{a: {main: true, after: b, run: {script: a}, ready: {port: true}},
            b: {after: a, run: {script: b}, ready: {port: true}}}""",
            "take after out of one of them",
        ),
        ("{a: {main: true, run: {script: a}, ports: [http, http]}}", "take one of them out"),
    ],
)
def test_what_is_meant_is_said_where_it_is_plain(roles: str, hint: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_spec(f"name: x\nroles: {roles}\n", "job.yaml")
    assert error.value.lines[1].strip() == f"hint: {hint}"
