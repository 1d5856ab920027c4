"""Parts that the board and the model server share: access checks, limits, sockets."""
