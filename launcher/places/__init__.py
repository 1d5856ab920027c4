"""The kinds of places that runs go to; a kind's module is imported only when a run of it needs it."""
