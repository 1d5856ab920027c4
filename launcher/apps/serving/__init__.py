"""Serve a trained run's model over HTTP: `launch serve`."""
