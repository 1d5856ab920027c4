"""Choose the modules that the zygote, a process on each node that forks the ranks, imports before it does."""

from collections.abc import Collection

from launcher.spec.model import JobSpec

# What every DDP or FSDP script ends up importing; the first DistributedDataParallel(...) alone pulls in torch._dynamo.
TORCH = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
)
# What they do not bring along, for code that names it. Nothing that starts threads: a zygote with two does not fork.
NAMED = (
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.optim",
    "torchvision",
    "torchvision.transforms.v2",
    "msgspec",
    "xxhash",
)
# The trainer where it is installed: with these all of it is there. Where it is a part of the code, that one counts.
TRAINER = (
    *(name for name in NAMED if not name.startswith("torchvision")),
    "trainer.loop.trainer",
    "trainer.checkpoint.checkpointer",
    "trainer.strategies.build",
    "trainer.data.train",
)
TASKS = {
    "trainer.tasks.resnet": (
        "torchvision",
        "torchvision.transforms.v2",
        "trainer.tasks.images",
        "trainer.tasks.predict",
        "trainer.serving.service",
    ),
    "trainer.tasks.gpt": ("trainer.tasks.predict", "trainer.serving.service"),
}
_ANYTHING = ("torchvision",)
# What imports torch by itself, beside what has its name.
_BRING_TORCH = frozenset((
    "accelerate", "apex", "deepspeed", "diffusers", "fairscale", "fastai", "flash_attn", "ignite", "kornia",
    "lightning", "lightning_fabric", "monai", "open_clip", "peft", "pytorch_lightning", "sentence_transformers",
    "timm", "trainer", "transformer_engine", "transformers", "trl", "vllm", "xformers",
))  # fmt: skip

_ON_CPU = frozenset((
    "PIL", "attr", "certifi", "click", "dateutil", "joblib", "matplotlib", "msgspec", "numpy", "orjson", "packaging",
    "pandas", "psutil", "pyarrow", "pydantic", "pytest", "requests", "rich", "scipy", "six", "sklearn", "tqdm",
    "typer", "typing_extensions", "xxhash", "yaml",
))  # fmt: skip


def preload_for(spec: JobSpec, imports: Collection[str]) -> tuple[str, ...]:
    """Return the modules to preload: the list in the spec if there is one, none for a `run.command`, else
    those of known slow modules that the script imports, and torch if it is imported.

    `imports` are the modules that the script imports, of which "*" stands for unknown ones: torch and torchvision are
    then preloaded. Return none if `imports` is empty.
    """
    if spec.run.preload is not None:
        return spec.run.preload
    if spec.run.command is not None or not imports:
        return ()
    module = spec.run.module or ""
    if module.partition(".")[0] == "trainer" and "*" in imports:
        return (*TORCH, *TRAINER, *TASKS.get(module, ()))
    if "*" in imports:
        return (*TORCH, *_ANYTHING)
    named = [name for name in NAMED if name in imports]
    if not any(_brings_torch(name) for name in imports):
        return tuple(named)
    trainer = [name for name in TRAINER if name not in named] if "trainer" in imports else []
    return (*TORCH, *named, *trainer)


def surely_on_cpu(imports: Collection[str]) -> bool:
    """Return whether a script with these imports certainly uses no GPU: each is on a list of packages that have no use
    for one.
    """
    return all(name.partition(".")[0] in _ON_CPU for name in imports)


def _brings_torch(module: str) -> bool:
    """Return whether importing the module imports torch, judged by its name alone: that begins with `torch`, or is one
    of the known libraries on torch, such as `transformers`.
    """
    top = module.partition(".")[0]
    return top.startswith("torch") or top in _BRING_TORCH
