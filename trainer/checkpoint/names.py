"""Give parameters and buffers stable names, whatever wraps the model: DDP, compile, FSDP2, activation checkpointing."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from trainer.checkpoint.stand_ins import has_values
from trainer.errors import TrainerError

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")  # of torch.compile and of activation checkpointing


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the user's own model inside its wrappers."""
    while True:
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def clean(name: str) -> str:
    """Return a parameter's name without the segments that wrappers add, such as `_orig_mod` of torch.compile."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class ModelNames:
    """The names that the tensors of some models have in a checkpoint.

    They are `model/layer1.weight` for an only model, or `model/critic/layer1.weight` for one with the key `critic`.
    `of_parameter` gives such a name by the parameter's id(). All methods that return tensors' names return these.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self.models = {key: unwrapped(model) for key, model in models.items()}
        # state_dict() alone knows which buffers are persistent. It also makes FSDP2 put unsharded parameters away.
        self._kept = {key: {clean(name) for name in model.state_dict()} for key, model in self.models.items()}
        self.of_parameter: dict[int, str] = {}
        for key, model in self.models.items():
            for name, parameter in model.named_parameters():
                self.of_parameter.setdefault(id(parameter), _prefix(key) + clean(name))

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters whose values this rank has, by name, detached; a tied one is under its first name."""
        return {
            self.of_parameter[id(parameter)]: parameter.detach()
            for model in self.models.values()
            for parameter in model.parameters()
            if has_values(parameter)
        }

    def stand_ins(self) -> dict[str, Tensor]:
        """Return, by name in a checkpoint, the parameters whose values only other ranks have, as in a pipeline.

        Each has the parameter's shape and type but the memory of a single number.
        """
        return {
            self.of_parameter[id(parameter)]: parameter
            for model in self.models.values()
            for parameter in model.parameters()
            if not has_values(parameter)
        }

    def tied(self) -> dict[str, str]:
        """Return the further names of tied parameters, each with the first name, under which the parameter is saved."""
        return {
            _prefix(key) + clean(name): self.of_parameter[id(parameter)]
            for key, model in self.models.items()
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if self.of_parameter[id(parameter)] != _prefix(key) + clean(name)
        }

    def trained(self) -> frozenset[str]:
        """Return the names of the parameters that training changes: those with `requires_grad`."""
        return frozenset(
            self.of_parameter[id(parameter)]
            for model in self.models.values()
            for parameter in model.parameters()
            if parameter.requires_grad
        )

    def buffers(self) -> dict[str, Tensor]:
        """Return the persistent buffers by their names."""
        return {
            _prefix(key) + clean(name): buffer.detach()
            for key, model in self.models.items()
            for name, buffer in model.named_buffers()
            if clean(name) in self._kept[key]
        }

    def extra_state(self) -> dict[str, dict[str, Any]]:
        """Return {model: {module: state}}, with the result of get_extra_state() for each module that defines it."""
        found: dict[str, dict[str, Any]] = {}
        for key, model in self.models.items():
            for name, module in model.named_modules():
                if type(module).get_extra_state is not nn.Module.get_extra_state:
                    found.setdefault(key, {})[clean(name)] = module.get_extra_state()
        return found

    def set_extra_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the extra state of modules, as `extra_state` returned it: {model: {module: state}}.

        Modules without an entry in `state` are left as they are.
        """
        for key, model in self.models.items():
            for name, module in model.named_modules():
                # A wrapper has the same clean name as what it wraps.
                own = type(module).set_extra_state is not nn.Module.set_extra_state
                if own and clean(name) in state.get(key, {}):
                    module.set_extra_state(state[key][clean(name)])

    def name_in(self, optimizer: Optimizer, parameter: Tensor) -> str:
        """Return the name of a parameter of `optimizer`. Raises TrainerError if the parameter is in no model."""
        name = self.of_parameter.get(id(parameter))
        if name is None:
            raise TrainerError(
                f"checkpoint: {type(optimizer).__name__} has a parameter of shape {tuple(parameter.shape)} that is in "
                "no model\nhint: give Checkpointer every model that is trained, and make the optimizer after wrapping"
            )
        return name


def _prefix(key: str) -> str:
    """Return the prefix of one model's tensors: `model/`, or `model/KEY/` for a model with a key."""
    return f"model/{key}/" if key else "model/"
