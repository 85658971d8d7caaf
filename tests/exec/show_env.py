"""Writes this process's environment to FOLDER/env-RANK.json. show_env.py FOLDER"""

import json
import os
import sys

with open(os.path.join(sys.argv[1], "env-" + os.environ["RANK"] + ".json"), "w") as file:
    json.dump(dict(os.environ), file)
