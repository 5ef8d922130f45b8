"""`python -m pipecat_callgauge` prints the path of the setup file, for `PIPECAT_SETUP_FILES`."""

import sys
from pathlib import Path

sys.stdout.write(f"{Path(__file__).with_name('setup_file.py')}\n")
