"""For each YAML file named after the schema, prints whether it is valid: a line "ok" or "wrong: why" for each."""
import json
import sys

import jsonschema
from ruamel.yaml import YAML

schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
for path in sys.argv[2:]:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 2)
    errors = list(validator.iter_errors(yaml.load(open(path))))
    print("wrong: " + errors[0].message.replace("\n", " ") if errors else "ok")
