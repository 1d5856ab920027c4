"""Check whether a node's devices and links are fit for ranks: before it has any, and again after one has failed."""
