"""Which modules the zygote imports before it forks ranks."""

from collections.abc import Collection

from launcher.spec.model import JobSpec

# What every DDP or FSDP script ends up importing; the first DistributedDataParallel(...) alone pulls in torch._dynamo.
TORCH = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
)


def preload_for(spec: JobSpec, imports: Collection[str]) -> tuple[str, ...]:
    """The spec's own list; else torch for a script that needs anything beside the standard library and its own code."""
    if spec.run.preload is not None:
        return spec.run.preload
    if spec.run.command is not None or not imports:
        return ()
    needs_vision = bool({"torchvision", "*"} & set(imports))
    return (*TORCH, "torchvision") if needs_vision else TORCH
