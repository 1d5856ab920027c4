"""The board: a web page that shows all runs of this user."""
