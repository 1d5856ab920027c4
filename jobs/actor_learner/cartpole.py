"""CartPole and a policy that plays it, in plain Python: an actor starts at once and needs no torch. A state has four
numbers: place and speed of the cart (m, m/s), angle and angular speed of the pole (rad, rad/s).

An episode is a function of the weights, the seed, the step and its number, so it does not matter which actor plays it.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

State = tuple[float, float, float, float]  # the cart's place and speed, the pole's angle and its speed
Vector = Sequence[float]

LONGEST = 500  # steps of an episode: then the pole has stood long enough
_GRAVITY, _CART_KG, _POLE_KG, _HALF_POLE_M, _PUSH_N, _TICK_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_WIDEST_M, _STEEPEST = 2.4, math.radians(12)


@dataclass(frozen=True, slots=True)
class Policy:
    """A layer of tanh and one output: the log-odds of a push to the right; `hidden` has a row of weights per unit."""

    hidden: Sequence[Vector]  # a row of weights for each unit
    hidden_bias: Vector
    out: Vector
    out_bias: float

    def log_odds(self, state: State) -> float:
        """Return the log-odds with which the policy pushes to the right."""
        rows = zip(self.hidden, self.hidden_bias, self.out, strict=True)
        return self.out_bias + sum(
            weight * math.tanh(bias + sum(map(float.__mul__, row, state))) for row, bias, weight in rows
        )


def begin(chance: random.Random) -> State:
    """Return a random state near the middle, with the pole almost upright."""
    return (
        chance.uniform(-0.05, 0.05),
        chance.uniform(-0.05, 0.05),
        chance.uniform(-0.05, 0.05),
        chance.uniform(-0.05, 0.05),
    )


def move(state: State, right: int) -> State:
    """Return the state 0.02 s after a push: to the right, or to the left if `right` is 0.

    The physics are those of Barto, Sutton and Anderson (1983).
    """
    x, speed, angle, turning = state
    mass = _CART_KG + _POLE_KG
    swing = _POLE_KG * _HALF_POLE_M
    force = ((_PUSH_N if right else -_PUSH_N) + swing * turning**2 * math.sin(angle)) / mass
    turn = (_GRAVITY * math.sin(angle) - math.cos(angle) * force) / (
        _HALF_POLE_M * (4 / 3 - _POLE_KG * math.cos(angle) ** 2 / mass)
    )
    push = force - swing * turn * math.cos(angle) / mass
    return (x + _TICK_S * speed, speed + _TICK_S * push, angle + _TICK_S * turning, turning + _TICK_S * turn)


def is_over(state: State) -> bool:
    """Return whether the pole leans more than 12 degrees, or the cart is more than 2.4 m from the track's middle."""
    return abs(state[0]) > _WIDEST_M or abs(state[2]) > _STEEPEST


def play(policy: Policy, seed: int, step: int, episode: int) -> tuple[list[State], list[int]]:
    """Play an episode, of at most LONGEST pushes; return its states and, for each, the push that the policy chose in it
    (1: right, 0: left). The state after the last push is left out.

    The random choices follow from `seed`, `step`, the training step of the policy's weights, and `episode`, the
    episode's number in that step.
    """
    chance = random.Random(f"{seed} {step} {episode}")  # noqa: S311 - a game, no secret
    state, states, pushes = begin(chance), list[State](), list[int]()
    while len(states) < LONGEST and not is_over(state):
        right = int(chance.random() < 1 / (1 + math.exp(-policy.log_odds(state))))
        states.append(state)
        pushes.append(right)
        state = move(state, right)
    return states, pushes
