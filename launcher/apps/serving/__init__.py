"""From a run to an endpoint: `launch serve` answers requests over HTTP with the model that a run has trained."""
