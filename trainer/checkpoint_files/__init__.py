"""Checkpoints as files: names, manifest, commit, fence, retention, verification. Never imports torch."""
