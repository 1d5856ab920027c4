"""Hold the kinds of clusters that runs go to; a kind's module is imported only when a run of it needs it."""
