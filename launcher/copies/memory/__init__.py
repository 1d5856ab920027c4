"""This node's memory, in which ranks leave what outlives them: whose it is, and who gives it back."""
