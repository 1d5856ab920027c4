"""Commands about clusters and their nodes: doctor and nodes."""
