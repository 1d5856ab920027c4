"""Checkpoints as files: names, manifest, commit, fence, retention and verification; never imports torch."""
