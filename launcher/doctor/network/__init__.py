"""The ways between nodes: the program that measures them on each, and what is said of them."""
