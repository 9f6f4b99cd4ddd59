#!/bin/bash
# scikit-learn 1.9.1 with polars 2.1.0: a polars frame may have a column whose name is the empty text, as a CSV file's
# index column has. With set_output(transform="polars"), `fit_transform` keeps the name, and `transform` of the same
# frame names the column "column_0", as polars does for an array with this schema. A pipeline of two scalers is
# therefore fitted on one set of names, and refuses the frame that it was fitted on. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 polars==2.1.0 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import polars
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

frame = polars.DataFrame({"": [0.0, 1.0, 2.0], "length": [2.0, 4.0, 5.0]})
scaler = StandardScaler().set_output(transform="polars")
print(scaler.fit_transform(frame).columns, scaler.transform(frame).columns, scaler.get_feature_names_out().tolist())
both = make_pipeline(StandardScaler(), MinMaxScaler()).set_output(transform="polars").fit(frame)
try:
    both.transform(frame)
except ValueError as error:
    print(*str(error).splitlines()[:3], sep="\n")
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
['', 'length'] ['column_0', 'length'] ['', 'length']
The feature names should match those that were passed during fit.
Feature names unseen at fit time:
- column_0
OUTPUT
echo "as seen"
