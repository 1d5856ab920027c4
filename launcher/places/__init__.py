"""Where runs go. A kind's module is imported only when a run goes, or has gone, there."""
