"""Commands that use what a run has trained."""
