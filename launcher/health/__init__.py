"""Whether a node's devices and links are fit for ranks: looked at before it has any, and again after one has failed."""
