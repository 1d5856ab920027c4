"""Commands that change or remove runs: cancel, tag, rm, prune and others."""
