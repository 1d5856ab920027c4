import pytest
import torch
from ranks import spawn_ranks
from small_trainings import Ema, Recipe, Training
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.checkpoint.contents import Subjects, gather
from trainer.errors import TrainerError
from trainer.world import World, join


def names_on_each_rank(strategy):
    training = Training.begin(Recipe(strategy, ema=True))
    contents = gather(training.checkpointer("unused")._subjects, training.world)
    return sorted(contents.tensors), sorted(contents.documents)


def test_one_rank_speaks_for_all_and_each_for_itself():
    (tensors, documents), (others, other_documents) = spawn_ranks(names_on_each_rank, 2, "ddp")
    assert documents == ["rank/00000", "shared"] and other_documents == ["rank/00001"]
    assert set(tensors) - set(others) == {
        f"model/body.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_of_a_sharded_tensor_each_rank_brings_its_part():
    (tensors, _), (others, documents) = spawn_ranks(names_on_each_rank, 2, "fsdp")
    assert "state/shared/objects/ema/shadow/embed.weight" in set(tensors) & set(others)
    assert documents == ["rank/00001"]


def keep_a_sharded_tensor_for_one_rank():
    training = Training.begin(Recipe("fsdp"))
    subjects = Subjects({"": training.model}, {}, {}, {"mine": Ema(training.module)})
    with pytest.raises(TrainerError, match="a sharded tensor cannot be in `per_rank`\nhint: keep it in `state`"):
        gather(subjects, training.world)
    return True


def test_a_sharded_tensor_is_no_single_rank_s():
    assert all(spawn_ranks(keep_a_sharded_tensor_for_one_rank, 2))


def who_keeps_buffers():
    world = join(group=True)
    one, other = (DistributedDataParallel(nn.BatchNorm1d(2)) for _ in range(2))
    follow = Subjects({"a": one, "b": other}, {}, {}, {}).buffers_follow_first_rank
    other.broadcast_buffers = False
    return follow, Subjects({"a": one, "b": other}, {}, {}, {}).buffers_follow_first_rank, world.size


def test_buffers_follow_the_first_rank_where_all_models_do():
    assert spawn_ranks(who_keeps_buffers, 1) == [(True, False, 1)]


def test_what_cannot_be_kept_is_named_by_where_it_is():
    class Odd:
        def state_dict(self):
            return {"seen": [1, object()]}

    training = Training.begin(Recipe("none"))
    subjects = Subjects({"": training.model}, {}, {"data": Odd()}, {})
    with pytest.raises(TrainerError, match=r"state/shared/objects/data/seen/1: a builtins\.object cannot be saved"):
        gather(subjects, training.world)


def test_generators_of_all_gpus_of_a_data_parallel():
    model = nn.DataParallel(nn.Linear(1, 1))
    model.device_ids = [0, 1, 2]
    world = World(0, 1, 0, 1, torch.device("cuda", 0))
    assert [str(device) for device in Subjects({"": model}, {}, {}, {}).devices(world)] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
    ]
