"""YAML to JobSpec."""
