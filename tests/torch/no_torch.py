"""Instead of the tests of the PyTorch backend where it was not built."""

import sys

print(
    "not tried: there is no torch; install it for python3 (pip install torch), "
    "or configure with -Dtorch_python=PYTHON, which has one"
)
sys.exit(77)
