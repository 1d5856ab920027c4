import pytest
import torch
import torch.distributed as dist
from ranks import spawn_ranks
from small_trainings import Recipe, Training
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.optimizers import OptimizerNames, device_of_state, sharded_again
from trainer.errors import TrainerError


class Lopsided(torch.optim.Optimizer):
    """Sharded state that has not the shape of its parameter: split, whole, and without a dimension."""

    def __init__(self, parameters, *_groups):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or parameter.dim() != 2:
                    continue
                state, square = self.state[parameter], parameter.grad.square()
                rows = square.mean(-1, keepdim=True) + state.get("rows", 0)
                columns = square.mean(0).redistribute(placements=[Replicate()]) + state.get("columns", 0)
                total = square.sum().redistribute(placements=[Replicate()]) + state.get("total", 0)
                state.update(rows=rows, columns=columns, total=total)
                parameter.sub_(group["lr"] * parameter.grad / (1 + rows + columns + total))


def go_on(folder, steps):
    training = Training.begin(Recipe("fsdp"))
    training.optimizer = Lopsided([parameter for parameter in training.model.parameters() if parameter.requires_grad])
    training.scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 5)
    torch.manual_seed(dist.get_rank())
    checkpointer = training.checkpointer(folder)
    step, losses = checkpointer.load(), []
    layouts = {
        key: value.placements for state in training.optimizer.state.values() for key, value in sorted(state.items())
    }
    for number in range(step, step + steps):
        losses.append(training.step(number + 1))
    checkpointer.save(step + steps, wait=True)
    return losses, layouts, checkpointer.finish(step + steps)


def test_sharded_state_of_other_shapes_comes_back_as_it_was(tmp_path):
    calm = spawn_ranks(go_on, 2, tmp_path / "calm", 6)
    first = spawn_ranks(go_on, 2, tmp_path / "it", 3)
    second = spawn_ranks(go_on, 2, tmp_path / "it", 3)
    for undisturbed, one, other in zip(calm, first, second, strict=True):
        assert undisturbed[0] == one[0] + other[0] and undisturbed[2] == other[2]
        assert other[1] == {"columns": (Replicate(),), "rows": (Shard(0),), "total": (Replicate(),)}
    elsewhere = spawn_ranks(go_on, 3, tmp_path / "it", 1)
    assert elsewhere[0][1] == second[0][1]


def refuse_sums():
    training = Training.begin(Recipe("fsdp"))
    parameter = next(training.model.parameters())
    half = DTensor.from_local(torch.ones(3), parameter.device_mesh, [Partial()])
    training.optimizer.state[parameter] = {"half": half}
    names = ModelNames({"": training.model})
    with pytest.raises(TrainerError, match="optimizer/warmth/half is a sum that its ranks have not added up"):
        OptimizerNames("", training.optimizer, names).tensors()
    return True


def test_half_of_a_sum_is_refused():
    assert all(spawn_ranks(refuse_sums, 2))


def test_a_whole_tensor_beside_an_unsharded_parameter_stays_what_it_is():
    tensor = torch.ones(3)
    assert sharded_again(tensor, torch.zeros(4), [0]) is tensor
    assert sharded_again(tensor, torch.zeros(4), None) is tensor


def test_groups_are_those_of_the_names():
    model = nn.Linear(2, 2)
    names = ModelNames({"": model})
    optimizer = torch.optim.AdamW([{"params": [model.bias], "lr": 0.5}, {"params": [model.weight]}])
    mine = OptimizerNames("", optimizer, names)
    saved = mine.groups()
    assert [group["params"] for group in saved] == [["bias"], ["weight"]]
    optimizer.param_groups[0]["lr"] = 0.1
    mine.check_groups(saved)
    mine.set_groups(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5 and optimizer.param_groups[0]["params"] == [model.bias]
    with pytest.raises(TrainerError, match="1, 1 now, 2 then"):
        mine.check_groups([{"params": ["bias", "weight"]}])


def test_state_of_a_parameter_that_had_none_goes():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.1)
    optimizer.state[model.weight] = {"momentum_buffer": torch.ones(2, 2)}
    mine = OptimizerNames("", optimizer, ModelNames({"": model}))
    mine.replace({"bias": {"momentum_buffer": torch.zeros(2)}})
    assert list(optimizer.state) == [model.bias]


@pytest.mark.parametrize(
    ("key", "group", "expected"),
    [
        ("step", {}, "cpu"),
        ("step", {"capturable": True}, "meta"),
        ("step", {"fused": True}, "meta"),
        ("exp_avg", {}, "meta"),
    ],
)
def test_where_a_tensor_of_the_state_lives(key, group, expected):
    assert device_of_state(key, group, torch.empty(2, device="meta")).type == expected
