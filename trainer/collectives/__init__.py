"""How fast, and how right, ranks talk with each other: `launch doctor CLUSTER --collectives`, or by itself
`torchrun --nproc-per-node 2 -m trainer.collectives`."""
