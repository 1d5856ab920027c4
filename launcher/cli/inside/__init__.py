"""Commands that look into running ranks: exec, shell, debug, stacks."""
