"""Define what can be written as an option's value: each kind reads a node, shows a value and gives its JSON Schema."""
