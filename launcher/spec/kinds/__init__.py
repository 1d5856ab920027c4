"""What can be written as the value of an option. Each kind reads a node, says so in JSON Schema, and shows a value."""
