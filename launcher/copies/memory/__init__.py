"""The folders in a node's memory where ranks leave what outlives them: their owners, and their removal."""
