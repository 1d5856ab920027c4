"""Programs built on the Python API alone: board, serving, sweeps, proofs, scaling, collectives, graphs."""
