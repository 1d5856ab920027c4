"""Forward and backward passes are left as soon as somebody says so; else they are as ever."""

import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.modules import module as modules

from trainer.loop.launch_messages import Passes

LAYERS = 40


class Left(Exception):
    pass


class Word:
    """Counts the checks, and raises once passes are to be left."""

    def __init__(self):
        self.there, self.asked = True, 0

    def check(self):
        self.asked += 1
        if self.there:
            raise Left


class Counted(nn.Linear):
    run = 0

    def forward(self, x):
        Counted.run += 1
        return super().forward(x)


@pytest.fixture
def word():
    return Word()


@pytest.fixture
def net():
    Counted.run = 0
    return nn.Sequential(*(Counted(3, 3) for _ in range(LAYERS)))


@pytest.fixture
def passes(word, net):
    made = Passes(word.check, net.parameters())
    counters.clear()  # of what other tests have compiled
    yield made
    made.close()


def gradients(net):
    net.zero_grad()
    net(torch.ones(2, 3)).sum().backward()
    return [one.grad for one in net.parameters()]


def said_by_another_thread(passes):
    other = threading.Thread(target=passes.leave)
    other.start()
    other.join()


def test_nobody_asks_before_somebody_says_leave(net, word, passes):
    gradients(net)
    assert (Counted.run, word.asked) == (LAYERS, 0)
    assert not any(one._post_accumulate_grad_hooks for one in net.parameters())


def test_a_forward_pass_is_left_at_the_next_module(net, word, passes):
    net[3].register_forward_hook(lambda *_: said_by_another_thread(passes))
    with pytest.raises(Left):
        net(torch.ones(2, 3))
    assert Counted.run == 4


def test_a_backward_pass_is_left_in_the_middle_and_the_next_one_is_as_ever(net, passes):
    wanted = gradients(net)
    net.zero_grad()
    half = net[: LAYERS // 2](torch.ones(2, 3))
    half.register_hook(lambda _: said_by_another_thread(passes))
    with pytest.raises(Left):
        net[LAYERS // 2 :](half).sum().backward()
    there = [one.grad is not None for one in net.parameters()]
    assert LAYERS <= sum(there) < LAYERS + 10  # a weight and a bias each
    passes.close()
    assert all(map(torch.equal, gradients(net), wanted))


def test_modules_of_other_threads_are_left_alone(net, passes):
    passes.leave()
    other = threading.Thread(target=net, args=[torch.ones(2, 3)])
    other.start()
    other.join()
    assert Counted.run == LAYERS


def test_what_is_closed_asks_nobody(net, word, passes):
    passes.leave()
    passes.leave()
    passes.close()
    gradients(net)
    assert (Counted.run, word.asked) == (LAYERS, 0)
    assert not modules._global_forward_pre_hooks


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1000])
def test_a_few_parameters_ask_whatever_their_number(word, count):
    word.there = False
    parameters = [nn.Parameter(torch.ones(1), requires_grad=number % 100 != 99) for number in range(count)]
    passes = Passes(word.check, parameters)
    passes.leave()
    torch.stack([torch.ones(1, requires_grad=True), *parameters]).sum().backward()
    passes.close()
    assert min(count, 16) <= word.asked <= 32


def test_what_is_compiled_is_not_compiled_anew_to_be_left(word, passes):
    compiled = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend="eager")
    compiled(torch.ones(2, 3))
    passes.leave()
    compiled(torch.ones(2, 3))
    assert (counters["frames"]["total"], word.asked) == (1, 0)
