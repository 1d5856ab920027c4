"""Sweeps: many runs of one spec that differ in some options, chosen by Optuna, started and ended by a conductor."""
