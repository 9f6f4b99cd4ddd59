#!/bin/bash
# mlflow-skinny 3.17.2 (Python 3.11): in an environment with nothing else, the first run ends with an error, because the
# place where runs are kept by default, a file of SQLite, is one that the package does not support without further
# packages. A folder for runs, for which it has all that is needed, is refused unless an environment variable allows it.
# Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q mlflow-skinny==3.17.2
cat >"$folder/try.py" <<'PYTHON'
import sys

import mlflow

if len(sys.argv) > 1:
    mlflow.set_tracking_uri(sys.argv[1])
try:
    with mlflow.start_run():
        mlflow.log_metric("inertia", 1.0)
    print("kept")
except Exception as error:
    print(f"{type(error).__name__}: {str(error).strip().partition(';')[0].partition('.')[0]}")
PYTHON
cd "$folder"
diff - <(
    env/bin/python try.py 2>/dev/null
    env/bin/python try.py "file://$folder/runs" 2>/dev/null
    MLFLOW_ALLOW_FILE_STORE=true env/bin/python try.py "file://$folder/runs" 2>/dev/null
) <<'OUTPUT'
UnsupportedModelRegistryStoreURIException: Model registry functionality is unavailable
MlflowException: The filesystem tracking backend (e
kept
OUTPUT
echo "as seen"
