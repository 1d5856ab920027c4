"""Measure collectives on a cluster: `launch doctor CLUSTER --collectives`."""
