"""Measure and check communication between ranks.

`launch doctor CLUSTER --collectives` runs it, and so does `torchrun --nproc-per-node 2 -m trainer.collectives`.
"""
