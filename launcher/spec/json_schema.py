"""The JSON Schema of a spec, from the table of options. `launch schema` prints it."""

import json
from typing import Any

from launcher.spec.fields import JOB
from launcher.spec.kinds.sections import Section


def schema(job: Section = JOB) -> dict[str, Any]:
    """Draft 2020-12. Editors read YAML 1.2 values, so it is a little wider than the reader, never narrower."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A training job for launch",
        **job.schema(),
    }


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
