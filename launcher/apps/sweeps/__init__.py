"""Sweeps: many runs of one spec that differ in some options, which Optuna chooses; a conductor starts and ends them."""
