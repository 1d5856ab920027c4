"""Commands that start runs or prepare to: submit, run, resume, sweep, prove, scale, spec."""
