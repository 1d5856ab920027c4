"""Turn a spec into a run that exists, and open a run's next attempt when a user resumes it."""
