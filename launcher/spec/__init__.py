"""Read specs: from YAML to JobSpec."""
