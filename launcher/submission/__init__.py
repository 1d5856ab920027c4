"""From a spec to a run that exists, and a run's next attempt when somebody resumes it."""
